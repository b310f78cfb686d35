#include "runtime/python_lock.h"

namespace spyre {
namespace {
PythonLock python_lock;
}

void set_python_lock(PythonLock lock) { python_lock = lock; }

WithoutPythonLock::WithoutPythonLock() {
  if (python_lock.release != nullptr) {
    held_ = python_lock.release();
  }
}

WithoutPythonLock::~WithoutPythonLock() {
  if (held_ != nullptr) {
    python_lock.acquire(held_);
  }
}

}  // namespace spyre
