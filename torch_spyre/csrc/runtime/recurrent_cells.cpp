// The cells inside nn.LSTM and nn.GRU. PyTorch expects fused ones of every device but the CPU, so
// there is nothing to fall back to; these are made of operations that the card has.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

namespace spyre {
namespace {

using at::Tensor;
using std::optional;

bool is_given(const optional<Tensor>& tensor) { return tensor && tensor->defined(); }

Tensor with_bias(const Tensor& gates, const optional<Tensor>& bias) {
  return is_given(bias) ? gates + *bias : gates;
}

// Columns side by side. (`at::cat` is not on the card yet.)
Tensor beside(const std::vector<Tensor>& parts) {
  const int64_t width = parts[0].size(1);
  Tensor whole =
      at::empty({parts[0].size(0), width * static_cast<int64_t>(parts.size())}, parts[0].options());
  for (size_t i = 0; i < parts.size(); ++i) {
    whole.narrow(1, static_cast<int64_t>(i) * width, width).copy_(parts[i]);
  }
  return whole;
}

Tensor sigmoid_slope(const Tensor& y) { return y * (1 - y); }
Tensor tanh_slope(const Tensor& y) { return 1 - y * y; }

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx, const optional<Tensor>& input_bias,
                                             const optional<Tensor>& hidden_bias) {
  const Tensor gates = with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
  const auto part = gates.chunk(4, 1);
  const Tensor in = part[0].sigmoid(), forget = part[1].sigmoid(), cell = part[2].tanh(),
               out = part[3].sigmoid();
  const Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, beside({in, forget, cell, out})};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const optional<Tensor>& grad_hy,
                                                      const optional<Tensor>& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  if (!is_given(grad_hy) && !is_given(grad_cy)) {
    return {};
  }
  const auto part = workspace.chunk(4, 1);
  const Tensor &in = part[0], &forget = part[1], &cell = part[2], &out = part[3];
  const Tensor squashed = cy.tanh();
  const Tensor hidden = is_given(grad_hy) ? *grad_hy : at::zeros_like(cy);
  Tensor state = hidden * out * tanh_slope(squashed);
  if (is_given(grad_cy)) {
    state = state + *grad_cy;
  }
  const Tensor gates =
      beside({state * cell * sigmoid_slope(in), state * cx * sigmoid_slope(forget),
              state * in * tanh_slope(cell), hidden * squashed * sigmoid_slope(out)});
  return {gates, state * forget, has_bias ? gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const optional<Tensor>& input_bias,
                                    const optional<Tensor>& hidden_bias) {
  const auto input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (input[0] + hidden[0]).sigmoid(), update = (input[1] + hidden[1]).sigmoid();
  const Tensor fresh = (input[2] + reset * hidden[2]).tanh();
  return {fresh + update * (hx - fresh), beside({reset, update, fresh, hx, hidden[2]})};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const auto part = workspace.chunk(5, 1);
  const Tensor &reset = part[0], &update = part[1], &fresh = part[2], &hx = part[3],
               &hidden = part[4];
  const Tensor to_update = grad_hy * (hx - fresh) * sigmoid_slope(update);
  const Tensor to_fresh = grad_hy * (1 - update) * tanh_slope(fresh);
  const Tensor to_reset = to_fresh * hidden * sigmoid_slope(reset);
  const Tensor input_gates = beside({to_reset, to_update, to_fresh});
  const Tensor hidden_gates = beside({to_reset, to_update, to_fresh * reset});
  return {input_gates, hidden_gates, grad_hy * update, has_bias ? input_gates.sum(0) : Tensor(),
          has_bias ? hidden_gates.sum(0) : Tensor()};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  m.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
}

}  // namespace spyre
