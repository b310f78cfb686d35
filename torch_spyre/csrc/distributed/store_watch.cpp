#include "distributed/store_watch.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cerrno>
#include <string>

namespace spyre::distributed {
namespace {

const c10d::TCPStore* server_of(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  const auto inner = prefixed == nullptr ? store : prefixed->getUnderlyingNonPrefixStore();
  return dynamic_cast<const c10d::TCPStore*>(inner.get());
}

int connect_to(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return -1;
  int connected = -1;
  for (const addrinfo* at = found; at != nullptr && connected < 0; at = at->ai_next) {
    const int tried = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
    if (tried < 0) continue;
    if (connect(tried, at->ai_addr, at->ai_addrlen) == 0) {
      connected = tried;
    } else {
      close(tried);
    }
  }
  freeaddrinfo(found);
  return connected;
}

}  // namespace

StoreWatch::StoreWatch(const c10::intrusive_ptr<c10d::Store>& store) {
  if (const c10d::TCPStore* server = server_of(store)) {
    idle_ = connect_to(server->getHost(), server->getPort());
  }
}

StoreWatch::~StoreWatch() {
  if (idle_ >= 0) close(idle_);
}

bool StoreWatch::is_gone() const {
  if (idle_ < 0) return false;
  char nothing = 0;
  const bool has_no_news = recv(idle_, &nothing, 1, MSG_PEEK | MSG_DONTWAIT) < 0 &&
                           (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  return !has_no_news;
}

}  // namespace spyre::distributed
