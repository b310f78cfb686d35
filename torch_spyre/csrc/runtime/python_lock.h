// Waiting without Python's lock.
//
// An engine of the card may need the lock to let go of a tensor that Python knows, so a thread that
// holds it must not wait for the card. The runtime knows nothing of Python: the module says how.
#pragma once

namespace spyre {

struct PythonLock {
  void* (*release)() = nullptr;      // lets go of the lock if this thread holds it, else gives null
  void (*acquire)(void*) = nullptr;  // takes it again
};
void set_python_lock(PythonLock lock);

// While it lives, this thread doesn't hold Python's lock.
class WithoutPythonLock {
 public:
  WithoutPythonLock();
  ~WithoutPythonLock();
  WithoutPythonLock(const WithoutPythonLock&) = delete;
  WithoutPythonLock& operator=(const WithoutPythonLock&) = delete;

 private:
  void* held_ = nullptr;
};

}  // namespace spyre
