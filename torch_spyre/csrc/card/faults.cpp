#include "faults.h"

#include <array>
#include <cstdio>

#include "walk.h"

namespace spyre {
namespace {

using Kind = CardFault::Kind;

std::string hex(Address address) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(address));
  return text.data();
}

std::string step_name(const Program& program, uint32_t step) {
  return "step " + std::to_string(step) + " (" +
         std::string(opcode_info(program.steps[step].opcode).name) + ")";
}

// Which step and core touch the stick at `address`, in words; nullopt: none does.
std::optional<std::string> find_touch(const Program& program, std::span<const Binding> bindings,
                                      Address address) {
  std::vector<std::pair<size_t, uint32_t>> loops;  // end of the body, count
  std::vector<uint32_t> counts;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    while (!loops.empty() && loops.back().first <= i) {
      loops.pop_back();
      counts.pop_back();
    }
    const NodeRecord& node = program.nodes[i];
    if (node.kind == static_cast<uint32_t>(NodeKind::Loop)) {
      loops.emplace_back(i + 1 + node.size, node.count);
      counts.push_back(node.count);
      continue;
    }
    const StepRecord& step = program.steps[node.step];
    for (int core = 0; core < kCores; ++core) {
      if (!has_core(step.cores, core)) continue;
      if (iterations_of(program, step, core_slot(step.cores, core)) == 0) continue;
      for (const OperandRecord& operand : operands_of(program, step)) {
        if (!is_device(operand)) continue;
        const Reach reach =
            reach_of(program, step, operand, core, program.lanes[node.step], counts);
        const Wide start = bindings[operand.symbol].value;
        if (start + reach.first < static_cast<Wide>(address) + kStickBytes &&
            start + reach.end > static_cast<Wide>(address)) {
          return step_name(program, node.step) + ", core " + std::to_string(core);
        }
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> find_core(const Program& program, int core) {
  for (uint32_t step = 0; step < program.steps.size(); ++step) {
    if (has_core(program.steps[step].cores, core)) return step_name(program, step);
  }
  return std::nullopt;
}

}  // namespace

void FaultInjector::inject(const Injection& injection) {
  if (injection.core < 0 || injection.core >= kCores) {
    throw std::invalid_argument("a card has cores 0 to " + std::to_string(kCores - 1) + ", not " +
                                std::to_string(injection.core));
  }
  if (injection.after < 0) throw std::invalid_argument("`after` can't be negative");
  std::lock_guard lock(mutex_);
  armed_.push_back(injection);
  is_armed_ = true;
}

void FaultInjector::clear() {
  std::lock_guard lock(mutex_);
  armed_.clear();
  is_armed_ = false;
}

std::string FaultInjector::where(QueueId queue) const {
  return "Spyre card " + std::to_string(card_) + ", queue " + std::to_string(queue) + ": ";
}

template <typename Describe>
std::optional<CardFault> FaultInjector::strike(Describe describe) {
  if (!is_armed_.load(std::memory_order_relaxed)) return std::nullopt;
  std::lock_guard lock(mutex_);
  for (auto it = armed_.begin(); it != armed_.end(); ++it) {
    const std::optional<std::string> message = describe(*it);
    if (!message || it->after-- > 0) continue;
    const CardFault fault(it->kind, *message);
    armed_.erase(it);
    is_armed_ = !armed_.empty();
    return fault;
  }
  return std::nullopt;
}

std::optional<CardFault> FaultInjector::at_transfer(QueueId queue, const char* direction,
                                                    Address first, Address end) {
  return strike([&](const Injection& injection) -> std::optional<std::string> {
    const std::string transfer =
        std::string("a transfer ") + direction + " at addresses " + hex(first) + " to " + hex(end);
    switch (injection.kind) {
      case Kind::DmaError:
        return where(queue) + "DMA error in " + transfer;
      case Kind::EccError: {
        const Address stick = injection.address / kStickBytes * kStickBytes;
        if (first >= stick + kStickBytes || end <= stick) return std::nullopt;
        return where(queue) + "uncorrectable ECC error at address " + hex(stick) + " in " +
               transfer;
      }
      case Kind::CoreHang:
      case Kind::CheckFailed:
      case Kind::IndexError:
        return std::nullopt;  // faults of kernels
      case Kind::CardLost:
        return where(queue) + "the card is lost: it stopped answering during " + transfer;
      case Kind::Internal:
        return where(queue) + "internal error during " + transfer;
    }
    return std::nullopt;
  });
}

std::optional<CardFault> FaultInjector::at_launch(QueueId queue, const Program& program,
                                                  std::span<const Binding> bindings) {
  return strike([&](const Injection& injection) -> std::optional<std::string> {
    switch (injection.kind) {
      case Kind::DmaError:
      case Kind::CheckFailed:  // found by programs themselves, not injected
      case Kind::IndexError:
        return std::nullopt;
      case Kind::EccError: {
        const Address stick = injection.address / kStickBytes * kStickBytes;
        const auto touch = find_touch(program, bindings, stick);
        if (!touch) return std::nullopt;
        return where(queue) + "uncorrectable ECC error at address " + hex(stick) + " in " + *touch;
      }
      case Kind::CoreHang: {
        const auto step = find_core(program, injection.core);
        if (!step) return std::nullopt;
        return where(queue) + "core " + std::to_string(injection.core) + " hangs in " + *step;
      }
      case Kind::CardLost:
        return where(queue) + "the card is lost: it stopped answering during a kernel, " +
               step_name(program, 0);
      case Kind::Internal:
        return where(queue) + "internal error in a kernel, " + step_name(program, 0);
    }
    return std::nullopt;
  });
}

const char* fault_name(CardFault::Kind kind) {
  switch (kind) {
    case CardFault::Kind::DmaError:
      return "DmaError";
    case CardFault::Kind::EccError:
      return "EccError";
    case CardFault::Kind::CoreHang:
      return "CoreHang";
    case CardFault::Kind::CardLost:
      return "CardLost";
    case CardFault::Kind::Internal:
      return "Internal";
    case CardFault::Kind::CheckFailed:
      return "CheckFailed";
    case CardFault::Kind::IndexError:
      return "IndexError";
  }
  return "Internal";
}

}  // namespace spyre
