#include "runtime/errors.h"

#include <c10/util/Exception.h>

#include <stdexcept>

#include "card/driver.h"
#include "card/program.h"
#include "runtime/env.h"

namespace spyre {
namespace {

RaiseOverflow raise_overflow_hook = nullptr;
OnFailure failure_hook = nullptr;

}  // namespace

void set_on_failure(OnFailure on_failure) { failure_hook = on_failure; }

void report_failure(Phase phase, const char* kind, const std::string& message) noexcept {
  const Environment* env = environment_or_null();
  if (failure_hook == nullptr || env == nullptr || !env->reports_failures) {
    return;
  }
  try {
    failure_hook(phase == Phase::Launch ? "launch" : "runtime", kind, message);
  } catch (...) {  // the failure itself is what counts
  }
}

void report_failure(Phase phase) noexcept {
  try {
    throw;
  } catch (const OutOfMemory& error) {
    report_failure(phase, "OutOfMemory", error.what());
  } catch (const ConversionOverflow& error) {
    report_failure(phase, "ConversionOverflow", error.what());
  } catch (const CardFault& error) {
    report_failure(phase, fault_name(error.kind), error.what());
  } catch (const ProgramError& error) {
    report_failure(phase, "ProgramError", error.what());
  } catch (const c10::Error& error) {
    report_failure(phase, "Error", error.what_without_backtrace());
  } catch (const std::exception& error) {
    report_failure(phase, "Error", error.what());
  } catch (...) {
    report_failure(phase, "Error", "");
  }
}

void set_raise_overflow(RaiseOverflow raise) { raise_overflow_hook = raise; }

void raise_overflow(const std::string& message) {
  if (raise_overflow_hook != nullptr) {
    raise_overflow_hook(message);
  }
  TORCH_CHECK(false, message);
}

void rethrow_for_torch() {
  try {
    throw;
  } catch (const OutOfMemory& error) {
    C10_THROW_ERROR(OutOfMemoryError, error.what());
  } catch (const ConversionOverflow& error) {
    raise_overflow(error.what());
  } catch (const CardFault& error) {
    if (error.kind == CardFault::Kind::IndexError) C10_THROW_ERROR(IndexError, error.what());
    throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                                static_cast<int32_t>(error.kind), error.what());
  } catch (const ProgramError& error) {
    C10_THROW_ERROR(Error, std::string("the card rejected a program: ") + error.what());
  } catch (const std::invalid_argument& error) {
    C10_THROW_ERROR(ValueError, error.what());
  }
}

}  // namespace spyre
