// The harness of the C++ tests: one program per file, no dependencies.
//
//   TEST(a_name_that_states_the_claim) { CHECK(x > 0); CHECK_EQ(f(2), 4); }
//
// The program runs all tests, or those named on the command line, prints what failed and where,
// and returns 1 if anything did. A failed check does not end its test; after 20 failures of a test
// the rest are only counted.
#pragma once

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*body)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Registration {
  Registration(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

inline void fail(const char* file, int line, const std::string& what) {
  constexpr int kShown = 20;
  if (++failures() <= kShown) std::cout << file << ":" << line << ": " << what << "\n";
}

template <typename T>
std::string show(const T& value) {
  std::ostringstream text;
  if constexpr (std::is_enum_v<T>) {
    text << static_cast<int64_t>(value);
  } else if constexpr (std::is_integral_v<T> && sizeof(T) == 1) {
    text << static_cast<int>(value);
  } else if constexpr (requires { text << value; }) {
    text.precision(17);
    text << value;
  } else {
    text << "(a value)";
  }
  return text.str();
}

template <typename A, typename B>
bool equal(const A& a, const B& b) {
  if constexpr (std::is_integral_v<A> && std::is_integral_v<B> && !std::is_same_v<A, bool> &&
                !std::is_same_v<B, bool> && !std::is_same_v<A, char> && !std::is_same_v<B, char>) {
    return std::cmp_equal(a, b);
  } else {
    return a == b;
  }
}

template <typename A, typename B>
void check_equal(const char* file, int line, const char* text, const A& a, const B& b) {
  if (!equal(a, b)) fail(file, line, std::string(text) + ": " + show(a) + " != " + show(b));
}

// Runs `body` and returns the message of the exception of type E that it throws; fails otherwise.
template <typename E>
std::string message_of(const char* file, int line, const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    fail(file, line, std::string("another exception: ") + error.what());
    return "";
  }
  fail(file, line, "nothing thrown");
  return "";
}

inline int run(int argc, char** argv) {
  int failed = 0;
  int ran = 0;
  for (const Test& test : tests()) {
    bool is_wanted = argc < 2;
    for (int i = 1; i < argc; ++i) is_wanted = is_wanted || std::string(argv[i]) == test.name;
    if (!is_wanted) continue;
    failures() = 0;
    ++ran;
    try {
      test.body();
    } catch (const std::exception& error) {
      fail(test.name, 0, std::string("exception: ") + error.what());
    }
    if (failures() > 0) {
      ++failed;
      std::cout << "FAILED " << test.name << " (" << failures() << " checks)\n";
    }
  }
  std::cout << ran - failed << " passed, " << failed << " failed\n";
  return failed > 0 || ran == 0 ? 1 : 0;
}

}  // namespace check

#define TEST(name)                                                    \
  static void name();                                                 \
  static const check::Registration registration_##name{#name, &name}; \
  static void name()

#define CHECK(...)                                                                  \
  do {                                                                              \
    if (!(__VA_ARGS__)) check::fail(__FILE__, __LINE__, "not true: " #__VA_ARGS__); \
  } while (false)

#define CHECK_EQ(a, b) check::check_equal(__FILE__, __LINE__, #a " == " #b, (a), (b))

// The message of the exception that the statements throw, for further checks.
#define MESSAGE_OF(type, ...) check::message_of<type>(__FILE__, __LINE__, [&] { __VA_ARGS__; })

int main(int argc, char** argv) { return check::run(argc, argv); }
