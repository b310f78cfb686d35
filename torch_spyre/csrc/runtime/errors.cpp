#include "runtime/errors.h"

#include <c10/util/Exception.h>

#include <stdexcept>

#include "card/driver.h"
#include "card/program.h"

namespace spyre {
namespace {
RaiseOverflow raise_overflow_hook = nullptr;
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
