#include "runtime/generator.h"

#include <ATen/Functions.h>
#include <ATen/Utils.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>
#include <vector>

#include "runtime/cards.h"

namespace spyre {
namespace {

class PhiloxGenerator final : public c10::GeneratorImpl {
 public:
  explicit PhiloxGenerator(c10::DeviceIndex device)
      : GeneratorImpl(c10::Device(c10::kPrivateUse1, device),
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override { state_ = {seed, 0}; }
  uint64_t current_seed() const override { return state_.seed; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return state_.seed;
  }
  void set_offset(uint64_t offset) override { state_.offset = offset; }
  uint64_t get_offset() const override { return state_.offset; }

  // 16 bytes: seed, offset. The same on every host.
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor bytes = at::empty({sizeof(PhiloxState)}, at::kByte);
    std::memcpy(bytes.data_ptr(), &state_, sizeof(PhiloxState));
    return bytes.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& bytes) override {
    at::detail::check_rng_state(bytes);
    TORCH_CHECK(bytes.numel() == sizeof(PhiloxState), "a spyre generator's state has ",
                sizeof(PhiloxState), " bytes, got ", bytes.numel());
    std::memcpy(&state_, bytes.data(), sizeof(PhiloxState));
  }

  PhiloxState take(uint64_t count) {
    const std::lock_guard lock(mutex_);
    const PhiloxState before = state_;
    state_.offset += count;
    return before;
  }

 private:
  PhiloxGenerator* clone_impl() const override {
    auto* copy = new PhiloxGenerator(device().index());
    copy->state_ = state_;
    return copy;
  }

  PhiloxState state_{c10::default_rng_seed_val, 0};
};

}  // namespace

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<PhiloxGenerator>(checked_index(device));
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const std::vector<at::Generator> generators = [] {
    std::vector<at::Generator> all;
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      all.push_back(at::make_generator<PhiloxGenerator>(index));
    }
    return all;
  }();
  return generators.at(checked_index(device));
}

PhiloxState take_random(const std::optional<at::Generator>& generator, c10::DeviceIndex device,
                        uint64_t count) {
  at::Generator chosen =
      generator.has_value() && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(chosen.device().is_privateuseone(), "expected a 'spyre' generator, got one for ",
              chosen.device());
  TORCH_CHECK(chosen.device().index() == device,
              "expected a generator for spyre:", static_cast<int>(device), ", got one for ",
              chosen.device());
  return chosen.get<PhiloxGenerator>()->take(count);
}

}  // namespace spyre
