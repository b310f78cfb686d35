#include "distributed/work.h"

#include <algorithm>
#include <system_error>
#include <thread>

#include "distributed/courier.h"
#include "runtime/activity.h"
#include "runtime/cards.h"
#include "runtime/python_lock.h"
#include "runtime/stream.h"

namespace spyre::distributed {

SpyreWork::SpyreWork(int rank, c10d::OpType type, const char* title,
                     std::vector<at::Tensor> results, uint64_t sequence, c10::DeviceIndex device,
                     QueueId queue)
    : Work(rank, type, title, results),
      results_(std::move(results)),
      sequence_(sequence),
      device_(device),
      queue_(queue),
      known_ticket_(ticket_.get_future().share()),
      future_(c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()),
          std::vector<c10::Device>{c10::Device(c10::kPrivateUse1, device)})) {}

SpyreWork::~SpyreWork() { tell_error(); }

void SpyreWork::tell_error() const {
  const std::exception_ptr error = Work::exception();
  if (error == nullptr || is_error_told_.exchange(true)) return;
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& told) {
    TORCH_WARN("nobody waited for a call that failed. ", told.what_without_backtrace());
  } catch (const std::exception& told) {
    TORCH_WARN("nobody waited for a call that failed. ", told.what());
  }
}

bool SpyreWork::isSuccess() const {
  is_error_told_ = true;
  return Work::isSuccess();
}

std::exception_ptr SpyreWork::exception() const {
  is_error_told_ = true;
  return Work::exception();
}

void SpyreWork::complete(std::exception_ptr error, bool is_news) {
  if (is_completing_.exchange(true)) {
    return;
  }
  if (!is_news) is_error_told_ = true;
  finish(error);
  {
    const std::lock_guard lock(asking_);
    if (!is_future_known_) {
      complete_future(error);
      return;
    }
  }
  // What was hung on the future may wait for another collective of the group, and this thread is
  // the one that would carry it.
  auto self = c10::intrusive_ptr<SpyreWork>::reclaim_copy(this);
  try {
    std::thread([self, error]() mutable {
      self->complete_future(error);
      let_go(self);
    }).detach();
  } catch (const std::system_error&) {  // there are too many
    complete_future(error);
  }
}

c10::intrusive_ptr<c10::ivalue::Future> SpyreWork::getFuture() {
  const std::lock_guard lock(asking_);
  is_future_known_ = true;
  is_error_told_ = true;
  return future_;
}

void SpyreWork::complete_future(const std::exception_ptr& error) {
  if (error != nullptr) {
    future_->setError(error);
    return;
  }
  // A future notes the current stream of each device: whoever takes its value waits for that. On
  // the group's queue there is nothing but the group's exchanges.
  const QueueId before = current_queue(device_);
  driver(device_).block(queue_, known_ticket_.get());
  set_current_queue(device_, queue_);
  future_->markCompleted(c10::IValue(results_));
  set_current_queue(device_, before);
}

void SpyreWork::wait_on_host(std::chrono::milliseconds timeout) {
  const WithoutPythonLock unlocked;
  std::unique_lock lock(mutex_);
  const auto is_done = [&] { return completed_; };
  if (timeout == kNoTimeout) {
    cv_.wait(lock, is_done);
    return;
  }
  if (!cv_.wait_for(lock, timeout, is_done)) {
    C10_THROW_ERROR(DistBackendError, "spyreccl: " + c10d::opTypeToString(opType_) + " #" +
                                          std::to_string(sequence_) + " was not done within " +
                                          std::to_string(timeout.count()) + " ms (rank " +
                                          std::to_string(rank_) + ")");
  }
}

bool SpyreWork::wait(std::chrono::milliseconds timeout) {
  wait_on_host(timeout);
  if (const std::exception_ptr error = exception()) {
    std::rethrow_exception(error);
  }
  synchronize();
  return true;
}

void SpyreWork::synchronize() {
  const QueueId queue = current_queue(device_);
  const Ticket ticket = known_ticket_.get();
  driver(device_).block(queue, ticket);
  if (is_recording()) record_block(device_, queue, ticket);
}

JoinedWork::JoinedWork(std::vector<c10::intrusive_ptr<c10d::Work>> works)
    : works_(std::move(works)) {}

bool JoinedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isCompleted(); });
}

bool JoinedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr JoinedWork::exception() const {
  for (const auto& work : works_) {
    if (const std::exception_ptr error = work->exception()) return error;
  }
  return nullptr;
}

bool JoinedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

void JoinedWork::synchronize() {
  for (const auto& work : works_) work->synchronize();
}

std::vector<at::Tensor> JoinedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    for (const at::Tensor& tensor : work->result()) all.push_back(tensor);
  }
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> JoinedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures)->then(
      [](c10::ivalue::Future& done) -> c10::IValue {
        std::vector<at::Tensor> all;
        for (const c10::IValue& one : done.value().toListRef()) {
          for (const at::Tensor& tensor : one.toFuture()->value().toTensorVector()) {
            all.push_back(tensor);
          }
        }
        return all;
      },
      c10::ListType::create(c10::TensorType::get()));
}

}  // namespace spyre::distributed
