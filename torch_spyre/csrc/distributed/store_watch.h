// Is the process that holds a store still there? Asked without using the store.
//
// PyTorch's TCPStore logs a stack trace when it is used after its server has ended, and that is no
// fault: the process that holds it may just be done first.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace spyre::distributed {

class StoreWatch {
 public:
  explicit StoreWatch(const c10::intrusive_ptr<c10d::Store>& store);
  ~StoreWatch();
  StoreWatch(const StoreWatch&) = delete;
  StoreWatch& operator=(const StoreWatch&) = delete;

  // Never of a store without a server, or if its machine is cut off.
  bool is_gone() const;

 private:
  int idle_ = -1;  // a connection on which nothing is said: it is closed when the server ends
};

}  // namespace spyre::distributed
