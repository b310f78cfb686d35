// A program on memory of its own, without a card around it.
#pragma once

#include <cstddef>
#include <memory>
#include <random>
#include <vector>

#include "../../torch_spyre/csrc/card/executor.h"
#include "../../torch_spyre/csrc/card/kernels.h"
#include "../../torch_spyre/csrc/card/program.h"
#include "programs.h"

namespace spyre::testing {

// Memory is noise at first; extents are bound to their maximum.
struct Launch {
  Launch(const ProgramBuilder& builder, uint64_t seed) : program(load_program(builder.bytes())) {
    std::mt19937_64 random(seed);
    int64_t used = 0;
    for (const SymbolRecord& symbol : program->symbols) {
      const auto kind = static_cast<SymbolKind>(symbol.kind);
      if (kind == SymbolKind::Address) {
        bindings.push_back({static_cast<uint64_t>(used), symbol.bytes});
        used += (symbol.bytes + kStickBytes - 1) / kStickBytes * kStickBytes;
      } else {
        const bool is_extent = kind == SymbolKind::Extent;
        bindings.push_back({is_extent ? static_cast<uint64_t>(symbol.bytes) : random() >> 32, 0});
      }
    }
    memory.resize(static_cast<size_t>(used));
    for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  }

  // What a symbol is bound to.
  std::byte* data(size_t symbol) { return memory.data() + bindings[symbol].value; }

  void run(int threads) {
    ThreadPool pool(threads);
    Executor(pool).run(*program, bindings, memory.data());
  }

  std::shared_ptr<const Program> program;
  std::vector<Binding> bindings;
  std::vector<std::byte> memory;
};

// Kernels of one version while it lives.
class IsaScope {
 public:
  explicit IsaScope(kernels::Isa isa) : before_(kernels::selected_isa()) {
    kernels::select_isa(isa);
  }
  ~IsaScope() { kernels::select_isa(before_); }
  IsaScope(const IsaScope&) = delete;
  IsaScope& operator=(const IsaScope&) = delete;

 private:
  const kernels::Isa before_;
};

}  // namespace spyre::testing
