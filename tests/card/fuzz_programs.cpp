// A malformed card program is rejected or harmless: mutates valid programs and launches what the
// card accepts. Build and run, from the root of the repository:
//
//   g++ -std=c++20 -O1 -g -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra
//       -Werror -pthread -fsanitize=address,undefined -fno-sanitize-recover=all
//       tests/card/fuzz_programs.cpp torch_spyre/csrc/card/*.cpp
//       torch_spyre/csrc/card/kernels/*.cpp torch_spyre/csrc/cost/cost.cpp -o fuzz_programs
//   ./fuzz_programs [mutations] [seed]
//
// Kernels run on a heap buffer, so that AddressSanitizer sees an access outside; bytes inside it
// that belong to no tensor, or to one that is only read, must stay what they were. A share of the
// programs goes the whole way through the driver.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../../torch_spyre/csrc/card/driver.h"
#include "../../torch_spyre/csrc/card/executor.h"
#include "../../torch_spyre/csrc/card/program.h"
#include "../../torch_spyre/csrc/card/walk.h"
#include "programs.h"
#include "relayouts.h"
#include "tables_and_rows.h"

namespace {

using namespace spyre;
using spyre::testing::ProgramBuilder;
using spyre::testing::RandomRows;

using Bytes = std::vector<std::byte>;

constexpr int64_t kArenaBytes = 256 * 1024;
constexpr int64_t kMaxWork = 1 << 18;  // elements: what a launch may cost here
constexpr int kDriverShare = 16;       // one launch in so many goes through the driver

struct Counts {
  long accepted = 0, rejected = 0, launched = 0, too_large = 0, faults = 0;
};

class Fuzzer {
 public:
  explicit Fuzzer(uint64_t seed)
      : programs_(seed), pool_(2), executor_(pool_), arena_(kArenaBytes) {
    card_ = open_software_card({.index = 0, .memory_bytes = 8 << 20, .threads = 2});
    block_ = card_->allocate(kArenaBytes, 0);
    for (std::byte& byte : arena_) byte = static_cast<std::byte>(programs_.bits());
  }

  // False when the card did something it must not.
  bool run(long mutations) {
    Bytes original;
    for (long i = 0; i < mutations; ++i) {
      if (i % 50 == 0) {
        original = next_program();
        if (!load(original)) return fail("a valid program was rejected: " + rejection_);
      }
      Bytes mutant = original;
      for (int n = programs_.pick(0, 2) == 0 ? programs_.pick(2, 5) : 1; n > 0; --n) mutate(mutant);
      const auto program = load(mutant);
      if (!program) {
        ++counts.rejected;
        continue;
      }
      ++counts.accepted;
      if (!launch(mutant, *program)) return false;
    }
    return true;
  }

  Counts counts;

 private:
  Bytes next_program() {
    switch (programs_.pick(0, 14)) {
      case 0:
        return programs_.reduction().bytes();
      case 1:
        return programs_.matmul().bytes();
      case 2:
        return programs_.gather().bytes();
      case 3:
        return programs_.chain().bytes();
      case 4:
        return programs_.gather_elements().bytes();
      case 5:
        return programs_.scatter().bytes();
      case 6:
        return programs_.argsort().bytes();
      case 7:
        return programs_.scan().bytes();
      case 8:
        return programs_.ring_reduction().bytes();
      case 9:
        return programs_.ring_matmul().bytes();
      case 10:
        return spyre::testing::relayouts::rows_to_columns(programs_.pick(1, 8),
                                                          programs_.pick(1, 4))
            .bytes();
      default:
        return programs_.next().bytes();
    }
  }

  std::shared_ptr<const Program> load(const Bytes& bytes) {
    try {
      // An exact copy on the heap: reading past its end is seen.
      const auto copy = std::make_unique<std::byte[]>(bytes.size());
      std::memcpy(copy.get(), bytes.data(), bytes.size());
      return load_program({copy.get(), bytes.size()});
    } catch (const ProgramError& error) {
      rejection_ = error.what();
      return nullptr;
    }
  }

  // ---- Mutations -------------------------------------------------------------------------------

  void mutate(Bytes& bytes) {
    if (bytes.empty()) return;
    switch (programs_.pick(0, 9)) {
      case 0:  // a byte
        bytes[place(bytes, 1)] = static_cast<std::byte>(programs_.bits());
        break;
      case 1:  // a bit
        bytes[place(bytes, 1)] ^= static_cast<std::byte>(1 << programs_.pick(0, 7));
        break;
      case 2:  // cut off
        bytes.resize(place(bytes, 1));
        fix_size(bytes);
        break;
      case 3:  // a piece over another
        if (bytes.size() >= 16) {
          const size_t from = place(bytes, 16), to = place(bytes, 16);
          std::memmove(bytes.data() + to, bytes.data() + from, 16);
        }
        break;
      case 4:
        write<uint32_t>(bytes, interesting());
        break;
      default:
        mutate_field(bytes);
    }
  }

  // A field of a record, so that most mutants get past the parser.
  void mutate_field(Bytes& bytes) {
    if (bytes.size() < sizeof(ProgramHeader)) return;
    ProgramHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    struct Table {
      uint32_t count;
      size_t size;
      size_t width;  // of a typical field
    };
    const Table tables[] = {{header.symbols, sizeof(SymbolRecord), 8},
                            {header.operands, sizeof(OperandRecord), 8},
                            {header.operands, 16, 1},
                            {header.steps, sizeof(StepRecord), 1},
                            {header.steps, sizeof(StepRecord), 4},
                            {header.masks, 16, 1},
                            {header.masks, sizeof(MaskRecord), 8},
                            {header.nodes, sizeof(NodeRecord), 4},
                            {header.bases, 8, 8},
                            {header.extents, 8, 8}};
    const size_t starts[] = {0, 1, 1, 2, 2, 3, 3, 4, 5, 6};
    const size_t sizes[] = {
        header.symbols * sizeof(SymbolRecord), header.operands * sizeof(OperandRecord),
        header.steps * sizeof(StepRecord),     header.masks * sizeof(MaskRecord),
        header.nodes * sizeof(NodeRecord),     header.bases * size_t{8}};
    const int choice = programs_.pick(0, static_cast<int>(std::size(tables)) - 1);
    const Table& table = tables[choice];
    if (table.count == 0) return;
    size_t offset = sizeof(header);
    for (size_t i = 0; i < starts[choice]; ++i) offset += sizes[i];
    const size_t stride = choice == 2   ? sizeof(OperandRecord)
                          : choice == 5 ? sizeof(MaskRecord)
                                        : table.size;
    offset += programs_.bits() % table.count * stride;
    offset += programs_.bits() % (table.size / table.width) * table.width;
    if (offset + table.width > bytes.size()) return;
    uint64_t value = 0;
    std::memcpy(&value, bytes.data() + offset, table.width);
    value = programs_.pick(0, 2) == 0 ? interesting() : value + nudge(table.width);
    std::memcpy(bytes.data() + offset, &value, table.width);
  }

  // A small step up or down, for offsets often a whole stick.
  uint64_t nudge(size_t width) {
    const int unit = width == 8 && programs_.pick(0, 3) != 0 ? kStickBytes : 1;
    return static_cast<uint64_t>(static_cast<int64_t>(programs_.pick(-2, 2)) * unit);
  }

  uint64_t interesting() {
    static constexpr uint64_t kValues[] = {0,
                                           1,
                                           2,
                                           3,
                                           4,
                                           8,
                                           31,
                                           32,
                                           64,
                                           127,
                                           128,
                                           129,
                                           255,
                                           256,
                                           65535,
                                           65536,
                                           0x7FFFFFFF,
                                           0x80000000,
                                           0xFFFFFFFF,
                                           0x100000000,
                                           uint64_t{1} << 40,
                                           uint64_t{1} << 62,
                                           0x7FFFFFFFFFFFFFFF,
                                           0x8000000000000000,
                                           0xFFFFFFFFFFFFFFFF,
                                           static_cast<uint64_t>(-128),
                                           static_cast<uint64_t>(kLxBytes - kLxReserved),
                                           static_cast<uint64_t>(kSpanBytes)};
    return kValues[programs_.bits() % std::size(kValues)];
  }

  template <typename T>
  void write(Bytes& bytes, uint64_t value) {
    if (bytes.size() < sizeof(T)) return;
    const T narrow = static_cast<T>(value);
    const size_t to = place(bytes, sizeof(T)) / sizeof(T) * sizeof(T);
    std::memcpy(bytes.data() + to, &narrow, sizeof(T));
  }

  size_t place(const Bytes& bytes, size_t size) {
    return programs_.bits() % (bytes.size() - size + 1);
  }

  static void fix_size(Bytes& bytes) {
    if (bytes.size() < sizeof(ProgramHeader)) return;
    const auto size = static_cast<uint32_t>(bytes.size());
    std::memcpy(bytes.data() + offsetof(ProgramHeader, size), &size, sizeof(size));
  }

  // ---- Launching -------------------------------------------------------------------------------

  // Places the tensors with a stick of guard between them; nothing if they don't fit.
  std::optional<std::vector<Binding>> bind(const Program& program) {
    std::vector<Binding> bindings;
    int64_t used = kStickBytes;
    for (const SymbolRecord& symbol : program.symbols) {
      switch (static_cast<SymbolKind>(symbol.kind)) {
        case SymbolKind::Address:
          if (symbol.bytes > kArenaBytes) return std::nullopt;
          bindings.push_back({static_cast<uint64_t>(used), symbol.bytes});
          used += (symbol.bytes + 2 * kStickBytes - 1) / kStickBytes * kStickBytes;
          if (used > kArenaBytes) return std::nullopt;
          break;
        case SymbolKind::Scalar:
          bindings.push_back({programs_.bits() & 0xFFFFFFFF, 4});
          break;
        case SymbolKind::Extent:
          bindings.push_back({programs_.bits() % (static_cast<uint64_t>(symbol.bytes) + 1), 0});
          break;
      }
    }
    return bindings;
  }

  bool launch(const Bytes& bytes, const Program& program) {
    const auto bindings = bind(program);
    if (!bindings || program.work > kMaxWork) {
      ++counts.too_large;
      return true;
    }
    fix_indices(program, *bindings);
    const Bytes before = arena_;
    try {
      if (++counts.launched % kDriverShare == 0) {
        launch_on_card(bytes, *bindings, program);
      } else {
        executor_.run(program, *bindings, arena_.data());
      }
    } catch (const CardFault& fault) {
      if (fault.kind != CardFault::Kind::IndexError) return fail(fault.what());
      ++counts.faults;
      card_->reset();
    }
    return check_untouched(program, *bindings, before);
  }

  // Small numbers where a step reads its indices: most launches then get past them.
  void fix_indices(const Program& program, const std::vector<Binding>& bindings) {
    for (const StepRecord& step : program.steps) {
      if (table_of(step) < 0) continue;
      const OperandRecord& index = program.operands[step.first_operand + 1];
      if (index.space != static_cast<uint8_t>(Space::Device)) continue;
      const Binding& bound = bindings[index.symbol];
      for (int64_t i = 0; i + 4 <= bound.bytes; i += 4) {
        const auto value = static_cast<int32_t>(programs_.pick(0, 999) == 0 ? -1 : i / 4 % 2);
        std::memcpy(arena_.data() + bound.value + i, &value, sizeof(value));
      }
    }
  }

  void launch_on_card(const Bytes& bytes, std::vector<Binding> bindings, const Program& program) {
    for (size_t i = 0; i < bindings.size(); ++i) {
      if (program.symbols[i].kind == static_cast<uint8_t>(SymbolKind::Address)) {
        bindings[i].value += block_;
      }
    }
    auto whole = std::make_shared<DmaDescriptor>();
    whole->device_format = DataFormat::SENINT8;
    whole->host_format = HostFormat::Int8;
    whole->device_bytes = whole->host_bytes = kArenaBytes;
    whole->nests.push_back({{kArenaBytes}, {1}, {1}, 0, 0, false});
    const ProgramId id = card_->load(bytes);
    card_->copy_to_card(0, block_, whole, arena_.data(), nullptr);
    card_->launch(0, id, bindings);
    card_->unload(id);
    card_->wait(card_->copy_to_host(0, block_, whole, arena_.data(), nullptr));
  }

  bool check_untouched(const Program& program, const std::vector<Binding>& bindings,
                       const Bytes& before) {
    Bytes expected = before;
    for (size_t i = 0; i < bindings.size(); ++i) {
      const SymbolRecord& symbol = program.symbols[i];
      if (symbol.kind != static_cast<uint8_t>(SymbolKind::Address) || symbol.is_written == 0) {
        continue;
      }
      if (symbol.bytes == 0) continue;
      std::memcpy(expected.data() + bindings[i].value, arena_.data() + bindings[i].value,
                  symbol.bytes);
    }
    return expected == arena_ ||
           fail("a program wrote outside the tensors that it declares as written");
  }

  bool fail(const std::string& what) {
    std::fprintf(stderr, "%s\n", what.c_str());
    return false;
  }

  RandomRows programs_;
  ThreadPool pool_;
  Executor executor_;
  Bytes arena_;
  std::unique_ptr<Driver> card_;
  Address block_ = 0;
  std::string rejection_;
};

}  // namespace

int main(int argc, char** argv) {
  const long mutations = argc > 1 ? std::atol(argv[1]) : 3000;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  Fuzzer fuzzer(seed);
  const bool ok = fuzzer.run(mutations);
  std::printf(
      "seed %llu: %ld accepted (%ld launched, %ld with an index fault, %ld too large to launch), "
      "%ld rejected\n",
      static_cast<unsigned long long>(seed), fuzzer.counts.accepted, fuzzer.counts.launched,
      fuzzer.counts.faults, fuzzer.counts.too_large, fuzzer.counts.rejected);
  return ok ? 0 : 1;
}
