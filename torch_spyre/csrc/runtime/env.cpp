#include "runtime/env.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string_view>

#include "card/kernels.h"
#include "runtime/cards.h"

namespace spyre {
namespace {

constexpr int kMaxThreads = 1024;

std::optional<std::string> read(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return std::string(value);
}

[[noreturn]] void reject(const char* name, const std::string& value, const std::string& legal) {
  C10_THROW_ERROR(ValueError, std::string("environment variable ") + name + "='" + value +
                                  "' is not valid: expected " + legal);
}

std::optional<int64_t> to_integer(const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) {
    return std::nullopt;
  }
  return value;
}

std::optional<int64_t> integer_between(const char* name, int64_t low, int64_t high) {
  const auto text = read(name);
  if (!text) {
    return std::nullopt;
  }
  const auto value = to_integer(*text);
  if (!value || *value < low || *value > high) {
    reject(name, *text, "an integer from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool flag(const char* name, bool otherwise) {
  const auto text = read(name);
  if (!text) {
    return otherwise;
  }
  const std::string lower = in_lower_case(*text);
  if (lower == "1" || lower == "true" || lower == "on") {
    return true;
  }
  if (lower == "0" || lower == "false" || lower == "off") {
    return false;
  }
  reject(name, *text, "0/1, true/false or on/off");
}

CheckMode check_mode() {
  const auto text = read("SPYRE_CARD_CHECK");
  if (!text || *text == "0") {
    return CheckMode::Off;
  }
  if (*text == "1") {
    return CheckMode::Memory;
  }
  if (*text == "nan") {
    return CheckMode::NonFinite;
  }
  reject("SPYRE_CARD_CHECK", *text,
         "0 (off), 1 (checked mode) or nan (which also stops at the "
         "first NaN or infinity made of finite numbers)");
}

FallbackMode fallback_mode() {
  const auto text = read("TORCH_SPYRE_FALLBACK");
  if (!text || *text == "warn") {
    return FallbackMode::Warn;
  }
  if (*text == "error") {
    return FallbackMode::Error;
  }
  if (*text == "quiet") {
    return FallbackMode::Quiet;
  }
  reject("TORCH_SPYRE_FALLBACK", *text,
         "warn (once per operation), error (operations without a card kernel raise) or quiet");
}

// "512M", "2GiB", "1073741824": bytes with an optional binary unit.
int64_t memory_size(const char* name) {
  const auto text = read(name);
  if (!text) {
    return 0;
  }
  const std::string legal =
      "a number of bytes of at least 1M, with an optional unit K, M, G or T (powers of 1024)";
  const size_t digits = text->find_first_not_of("0123456789");
  const auto number = to_integer(text->substr(0, digits));
  std::string unit = digits == std::string::npos ? "" : text->substr(digits);
  for (const std::string suffix : {"iB", "B"}) {
    if (unit.size() > suffix.size() && unit.ends_with(suffix)) {
      unit.resize(unit.size() - suffix.size());
    }
  }
  const std::string units = "KMGT";
  int shift = 0;
  if (!unit.empty()) {
    const size_t which = units.find(static_cast<char>(std::toupper(unit[0])));
    if (unit.size() != 1 || which == std::string::npos) {
      reject(name, *text, legal);
    }
    shift = 10 * (static_cast<int>(which) + 1);
  }
  if (!number || *number <= 0 || *number > (std::numeric_limits<int64_t>::max() >> 22 >> shift) ||
      (*number << shift) < (int64_t{1} << 20)) {
    reject(name, *text, legal);
  }
  return *number << shift;
}

std::vector<int> visible_devices(int cards) {
  std::vector<int> visible;
  const auto text = read("SPYRE_DEVICES");
  if (!text) {
    for (int i = 0; i < cards; ++i) {
      visible.push_back(i);
    }
    return visible;
  }
  size_t begin = 0;
  while (begin <= text->size()) {
    const size_t end = std::min(text->find(',', begin), text->size());
    std::string item = text->substr(begin, end - begin);
    item.erase(0, item.find_first_not_of(' '));
    item.erase(item.find_last_not_of(' ') + 1);
    const auto index = to_integer(item);
    if (!index) {
      reject("SPYRE_DEVICES", *text, "card indices separated by commas, such as 0,2");
    }
    const bool is_new = std::find(visible.begin(), visible.end(), *index) == visible.end();
    if (*index >= 0 && *index < cards && is_new) {
      visible.push_back(static_cast<int>(*index));
    }
    begin = end + 1;
  }
  return visible;
}

void one_of(const char* name, std::initializer_list<std::string_view> legal) {
  const auto text = read(name);
  if (!text || std::find(legal.begin(), legal.end(), in_lower_case(*text)) != legal.end()) {
    return;
  }
  std::string names;
  for (const std::string_view& value : legal) {
    const bool is_last = &value == legal.end() - 1;
    names += (names.empty() ? "" : is_last ? " or " : ", ") + std::string(value);
  }
  reject(name, *text, names);
}

// What will be made there: a file, or a directory of files. It need not exist, its folder must.
void place_for(const char* name, bool is_directory) {
  const auto text = read(name);
  if (!text) {
    return;
  }
  namespace fs = std::filesystem;
  std::error_code none;
  const fs::path path(*text);
  const bool is_there = fs::exists(path, none);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if ((is_there && fs::is_directory(path, none) != is_directory) ||
      (!is_there && !fs::is_directory(folder, none))) {
    reject(name, *text,
           std::string(is_directory ? "a directory" : "a file") +
               ", or a name for one in a directory that exists");
  }
}

// Read by Python code that is loaded late; a wrong value is told at once.
void check_python_variables() {
  integer_between("SENCORES", 1, 32);
  flag("LX_PLANNING", true);
  flag("SPYRE_DUMP_COST", false);
  flag("SPYRE_INDUCTOR_LOG", false);
  flag("TORCH_SPYRE_PROGRESS", true);
  flag("TORCH_SPYRE_TIMING", false);
  one_of("LAYOUT_SOLVER", {"greedy", "firstfit", "bestfit", "exact"});
  one_of("SPYRE_INDUCTOR_LOG_LEVEL", {"debug", "info", "warning", "error"});
  one_of("SPYRE_PLAN", {"full", "basic"});
  place_for("SPYRE_LOG_FILE", false);
  place_for("TORCH_SPYRE_FFDC_DIR", true);
  if (const auto text = read("DXP_LX_FRAC_AVAIL")) {
    char* end = nullptr;
    const double fraction = std::strtod(text->c_str(), &end);
    if (*end != '\0' || !(fraction >= 0 && fraction < 1)) {
      reject("DXP_LX_FRAC_AVAIL", *text, "a fraction of at least 0 and below 1");
    }
  }
}

Environment read_environment() {
  Environment env;
  if (const auto driver = read("FLEX_DEVICE"); driver && *driver != "SIM") {
    if (*driver == "PF" || *driver == "VF") {
      C10_THROW_ERROR(ValueError, "environment variable FLEX_DEVICE='" + *driver +
                                      "': no such driver in this build; only SIM, the software "
                                      "card, is built in (unset the variable to use it)");
    }
    reject("FLEX_DEVICE", *driver, "SIM (the software card), PF or VF");
  }
  const auto local_world = integer_between("LOCAL_WORLD_SIZE", 1, 1 << 20);
  const auto world = integer_between("AIU_WORLD_SIZE", 1, kMaxCards);
  env.cards =
      static_cast<int>(world.value_or(std::min<int64_t>(local_world.value_or(1), kMaxCards)));
  env.visible = visible_devices(env.cards);
  if (const auto rank = integer_between("LOCAL_RANK", -1, 1 << 20);
      rank.value_or(-1) >= 0 && !env.visible.empty()) {
    env.default_device = static_cast<int>(*rank % static_cast<int64_t>(env.visible.size()));
  }
  env.card_memory = memory_size("SPYRE_CARD_MEMORY");
  env.card_threads =
      static_cast<int>(integer_between("SPYRE_CARD_THREADS", 1, kMaxThreads).value_or(0));
  env.card_check = check_mode();
  env.monitor = flag("SPYRE_MONITOR", true);
  env.debug = flag("TORCH_SPYRE_DEBUG", false);
  env.downcast_warning = flag("TORCH_SPYRE_DOWNCAST_WARN", true);
  env.fallback = fallback_mode();
  env.reports_failures = flag("TORCH_SPYRE_FFDC", false);
  check_python_variables();
  try {
    kernels::table();  // reads SPYRE_CARD_ISA
  } catch (const std::invalid_argument& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
  return env;
}

}  // namespace

const Environment& environment() {
  static const Environment env = read_environment();  // a throw leaves it to the next caller
  return env;
}

void check_environment() {
  static const bool is_right = (read_environment(), true);  // a throw leaves it to the next caller
  static_cast<void>(is_right);
}

const Environment* environment_or_null() noexcept {
  try {
    return &environment();
  } catch (...) {
    return nullptr;
  }
}

}  // namespace spyre
