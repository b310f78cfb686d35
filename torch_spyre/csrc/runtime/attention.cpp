// scaled_dot_product_attention in eager mode. PyTorch asks every device which way it wants it done:
// one call for the whole, `spyre::attention`, which is planned like any operation; or, where
// gradients or a transformation need its parts, PyTorch's own composition of them.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

#include <initializer_list>
#include <tuple>

#include "runtime/operation.h"

namespace spyre {
namespace {

using at::Tensor;
using std::optional;

// Wrapped for a transformation (vmap, jvp, a tracer), or part of a graph for gradients.
bool needs_parts(const Tensor& tensor) {
  constexpr c10::DispatchKeySet kWrapped{
      c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
      c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::NestedTensor};
  return tensor.key_set().has_any(kWrapped) || tensor._fw_grad(0).defined() ||
         (at::GradMode::is_enabled() && tensor.requires_grad());
}

// Are batches the same, and heads, but for groups of query heads that share one of the keys?
bool is_plain(const Tensor& query, const Tensor& key, const Tensor& value, bool enable_gqa) {
  if (query.dim() < 3 || key.dim() != query.dim() || value.dim() != query.dim()) return false;
  for (int64_t dim = 0; dim < query.dim() - 2; ++dim) {
    const bool may_differ = enable_gqa && dim == query.dim() - 3;
    if (key.size(dim) != value.size(dim)) return false;
    if (key.size(dim) != query.size(dim) && !may_differ) return false;
  }
  return query.numel() != 0 && key.numel() != 0 && value.numel() != 0;
}

int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value,
               const optional<Tensor>& mask, double dropout, bool /*is_causal*/,
               optional<double> /*scale*/, bool enable_gqa) {
  constexpr auto kMath = static_cast<int64_t>(sdp::SDPBackend::math);
  const bool has_mask = mask && mask->defined();
  if (needs_parts(query) || needs_parts(key) || needs_parts(value) ||
      (has_mask && needs_parts(*mask))) {
    return kMath;  // and its sizes may be symbols
  }
  bool is_composed = dropout > 0 || !is_plain(query, key, value, enable_gqa) ||
                     (has_mask && mask->device() != query.device());
  for (const Tensor* tensor : {&key, &value}) {
    is_composed |=
        tensor->device() != query.device() || tensor->scalar_type() != query.scalar_type();
  }
  return is_composed ? kMath : static_cast<int64_t>(sdp::SDPBackend::overrideable);
}

// What PyTorch's own products of the parts would say.
void check_factors(int64_t batch, int64_t inner, int64_t given) {
  TORCH_CHECK(inner == given, "Expected size for first two dimensions of batch2 tensor to be: [",
              batch, ", ", inner, "] but got: [", batch, ", ", given, "].");
}

void check_shapes(const Tensor& query, const Tensor& key, const Tensor& value,
                  const optional<Tensor>& mask) {
  const int64_t queries = query.size(-2), keys = key.size(-2), rank = query.dim();
  const int64_t batch = c10::multiply_integers(query.sizes().slice(0, rank - 2));
  check_factors(batch, query.size(-1), key.size(-1));
  check_factors(batch, keys, value.size(-2));
  if (!mask || !mask->defined()) {
    return;
  }
  for (const auto& [dim, length] : {std::pair{rank - 2, queries}, std::pair{rank - 1, keys}}) {
    const int64_t given = mask->size(dim - rank);
    TORCH_CHECK(given == 1 || given == length, "The size of tensor a (", length,
                ") must match the size of tensor b (", given, ") at non-singleton dimension ", dim);
  }
}

// `spyre::attention`, with the rest that PyTorch's form returns for a backward that never comes.
std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>
attention_and_nothing_else(const Tensor& query, const Tensor& key, const Tensor& value,
                           const optional<Tensor>& bias, double dropout, bool is_causal,
                           bool /*return_debug_mask*/, optional<double> scale) {
  TORCH_CHECK(dropout == 0, "_scaled_dot_product_fused_attention_overrideable has no dropout on ",
              "the card; call scaled_dot_product_attention, which composes it");
  check_shapes(query, key, value, bias);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("spyre::attention", "")
                             .typed<Tensor(const Tensor&, const Tensor&, const Tensor&,
                                           const optional<Tensor>&, bool, optional<double>)>();
  return {op.call(query, key, value, bias, is_causal, scale),
          Tensor(),
          Tensor(),
          Tensor(),
          query.sym_size(-2),
          key.sym_size(-2),
          Tensor(),
          Tensor(),
          Tensor()};
}

// Strides as the query's: models go back to [batch, length, heads, width], which is then a view.
Tensor attention_meta(const Tensor& query, const Tensor& /*key*/, const Tensor& value,
                      const optional<Tensor>& /*bias*/, bool /*is_causal*/,
                      optional<double> /*scale*/) {
  if (query.sym_size(-1) == value.sym_size(-1)) {
    return at::empty_like(query);
  }
  c10::SymDimVector size(query.sym_sizes());
  size.back() = value.sym_size(-1);
  return at::empty_symint(size, query.options());
}

Tensor attention_on_cpu(const Tensor& query, const Tensor& key, const Tensor& value,
                        const optional<Tensor>& bias, bool is_causal, optional<double> scale) {
  const bool has_groups = query.size(-3) != key.size(-3);
  return at::scaled_dot_product_attention(query, key, value, bias, 0.0, is_causal, scale,
                                          has_groups);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(spyre, m) {
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? bias, bool is_causal, "
      "float? scale) -> Tensor");
}

TORCH_LIBRARY_IMPL(spyre, Meta, m) { m.impl("attention", TORCH_FN(attention_meta)); }
TORCH_LIBRARY_IMPL(spyre, CPU, m) { m.impl("attention", TORCH_FN(attention_on_cpu)); }
TORCH_LIBRARY_IMPL(spyre, PrivateUse1, m) {
  m.impl("attention", torch::CppFunction::makeFromBoxedFunction<&operation_kernel>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(attention_and_nothing_else));
}

}  // namespace spyre

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &spyre::choose)
}
