// One place where the card's exceptions become PyTorch's.
#pragma once

#include <exception>
#include <string>

namespace spyre {

// Rethrows the exception being handled as the c10 exception that Python users expect:
// OutOfMemory -> torch.OutOfMemoryError, ProgramError -> RuntimeError, CardFault ->
// torch.AcceleratorError (an index outside a table: IndexError), ConversionOverflow ->
// OverflowError, bad descriptors -> ValueError.
[[noreturn]] void rethrow_for_torch();

template <typename Function>
decltype(auto) translated(Function&& function) {
  try {
    return function();
  } catch (...) {
    rethrow_for_torch();
  }
}

// Throws Python's OverflowError. Set by the module, which knows Python; until then RuntimeError.
using RaiseOverflow = void (*)(const std::string& message);
void set_raise_overflow(RaiseOverflow raise);
[[noreturn]] void raise_overflow(const std::string& message);

}  // namespace spyre
