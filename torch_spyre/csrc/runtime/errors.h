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

// What was being done when something went wrong.
enum class Phase { Launch, Runtime };

// Tells whoever collects first failures (TORCH_SPYRE_FFDC) about one; nothing happens if nobody
// does. Takes Python's lock: no lock of the runtime may be held. Never throws.
void report_failure(Phase phase, const char* kind, const std::string& message) noexcept;

// The same for the exception being handled.
void report_failure(Phase phase) noexcept;

using OnFailure = void (*)(const char* phase, const char* kind, const std::string& message);
void set_on_failure(OnFailure on_failure);

// Calls a function that uses the card, outside of all locks: what it throws is reported.
template <typename Function>
decltype(auto) translated(Function&& function, Phase phase = Phase::Runtime) {
  try {
    return function();
  } catch (...) {
    report_failure(phase);
    rethrow_for_torch();
  }
}

// Throws Python's OverflowError. Set by the module, which knows Python; until then RuntimeError.
using RaiseOverflow = void (*)(const std::string& message);
void set_raise_overflow(RaiseOverflow raise);
[[noreturn]] void raise_overflow(const std::string& message);

}  // namespace spyre
