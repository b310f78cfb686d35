// The operations of the card. Values are part of the card program format.
//
// A pointwise operation names its operands' domains in order, then the result's:
// F float (fp32 once widened), I integer (int32 once widened). Truth values are floats 1.0 and
// 0.0, as bool tensors are stored on the card.
#pragma once

#include <cstdint>
#include <string_view>

namespace spyre {

// X(value, name, signature): signature "FF:F" takes two float operands and gives a float.
// clang-format off
#define SPYRE_POINTWISE_OPCODES(X)                                                             \
  /* identity and conversion between domains */                                                \
  X(1, identity, "F:F") X(2, identity_int, "I:I") X(3, float_to_int, "F:I")                    \
  X(4, int_to_float, "I:F") X(5, float_to_bool, "F:F") X(6, int_to_bool, "I:F")                \
  /* float unary */                                                                            \
  X(16, abs, "F:F") X(17, neg, "F:F") X(18, exp, "F:F") X(19, exp2, "F:F") X(20, log, "F:F")   \
  X(21, log2, "F:F") X(22, log1p, "F:F") X(23, sqrt, "F:F") X(24, rsqrt, "F:F")                \
  X(25, reciprocal, "F:F") X(26, tanh, "F:F") X(27, sigmoid, "F:F") X(28, relu, "F:F")         \
  X(29, gelu, "F:F") X(30, gelu_tanh, "F:F") X(31, silu, "F:F") X(32, erf, "F:F")              \
  X(33, floor, "F:F") X(34, ceil, "F:F") X(35, round, "F:F") X(36, trunc, "F:F")               \
  X(37, sign, "F:F") X(38, sin, "F:F") X(39, cos, "F:F") X(40, square, "F:F")                  \
  X(41, isnan, "F:F") X(42, isinf, "F:F") X(43, logical_not, "F:F") X(44, expm1, "F:F")        \
  X(45, log10, "F:F") X(46, tan, "F:F") X(47, asin, "F:F") X(48, acos, "F:F")                  \
  X(49, sinh, "F:F") X(50, cosh, "F:F") X(51, asinh, "F:F") X(52, acosh, "F:F")                \
  X(53, atanh, "F:F") X(54, erfc, "F:F") X(55, erfinv, "F:F") X(56, lgamma, "F:F")             \
  X(57, digamma, "F:F") X(58, i0e, "F:F") X(59, i1e, "F:F") X(60, k0e, "F:F")                  \
  X(61, k1e, "F:F") X(62, erfcx, "F:F") X(63, ndtri, "F:F")                                    \
  /* float binary */                                                                           \
  X(64, add, "FF:F") X(65, sub, "FF:F") X(66, mul, "FF:F") X(67, div, "FF:F")                  \
  X(68, maximum, "FF:F") X(69, minimum, "FF:F") X(70, pow, "FF:F") X(71, fmod, "FF:F")         \
  X(72, remainder, "FF:F") X(73, div_floor, "FF:F") X(74, div_trunc, "FF:F")                   \
  X(75, eq, "FF:F") X(76, ne, "FF:F") X(77, lt, "FF:F") X(78, le, "FF:F") X(79, gt, "FF:F")    \
  X(80, ge, "FF:F") X(81, logical_and, "FF:F") X(82, logical_or, "FF:F")                       \
  X(83, logical_xor, "FF:F") X(84, atan2, "FF:F") X(85, hypot, "FF:F")                         \
  X(86, copysign, "FF:F") X(87, igamma, "FF:F") X(88, igammac, "FF:F") X(89, zeta, "FF:F")     \
  /* float ternary */                                                                          \
  X(96, where, "FFF:F") X(97, clamp, "FFF:F") X(98, lerp, "FFF:F")                             \
  X(99, add_scaled, "FFF:F")   /* a + alpha*b */                                               \
  X(100, sub_scaled, "FFF:F")  /* a - alpha*b */                                               \
  X(101, softplus, "FFF:F")    /* x, beta, threshold */                                        \
  X(102, leaky_relu, "FF:F")   /* x, slope */                                                  \
  X(103, addcmul, "FFFF:F")    /* a + value*b*c, last operand the value */                     \
  X(104, addcdiv, "FFFF:F")                                                                    \
  X(105, elu, "FFFF:F")        /* x, alpha, scale, input_scale */                              \
  /* special functions; polynomials take x and the degree */                                   \
  X(106, bessel_j0, "F:F") X(107, bessel_j1, "F:F") X(108, bessel_y0, "F:F")                   \
  X(109, bessel_y1, "F:F") X(110, airy_ai, "F:F") X(111, chebyshev_t, "FF:F")                  \
  X(112, chebyshev_u, "FF:F") X(113, chebyshev_v, "FF:F") X(114, chebyshev_w, "FF:F")          \
  X(115, hermite_h, "FF:F") X(116, hermite_he, "FF:F") X(117, laguerre, "FF:F")                \
  X(118, legendre, "FF:F")                                                                     \
  X(119, nextafter, "FFIF:F")  /* x, toward, step in fp32's last places, smallest number */    \
  X(120, exp_sub, "FFF:F")     /* exp((a - b)*alpha): what softmax does with scores */         \
  /* integer unary */                                                                          \
  X(128, abs_int, "I:I") X(129, neg_int, "I:I") X(130, sign_int, "I:I")                        \
  X(131, bitwise_not, "I:I") X(132, square_int, "I:I") X(133, relu_int, "I:I")                 \
  X(134, logical_not_int, "I:F")                                                               \
  /* integer binary */                                                                         \
  X(144, add_int, "II:I") X(145, sub_int, "II:I") X(146, mul_int, "II:I")                      \
  X(147, maximum_int, "II:I") X(148, minimum_int, "II:I") X(149, pow_int, "II:I")              \
  X(150, fmod_int, "II:I") X(151, remainder_int, "II:I") X(152, div_floor_int, "II:I")         \
  X(153, div_trunc_int, "II:I") X(154, eq_int, "II:F") X(155, ne_int, "II:F")                  \
  X(156, lt_int, "II:F") X(157, le_int, "II:F") X(158, gt_int, "II:F") X(159, ge_int, "II:F")  \
  X(160, bitwise_and, "II:I") X(161, bitwise_or, "II:I") X(162, bitwise_xor, "II:I")           \
  X(163, shift_left, "II:I") X(164, shift_right, "II:I") X(165, logical_and_int, "II:F")       \
  X(166, logical_or_int, "II:F") X(167, logical_xor_int, "II:F") X(168, gcd, "II:I")           \
  /* integer ternary */                                                                        \
  X(176, where_int, "FII:I") X(177, clamp_int, "III:I") X(178, add_scaled_int, "III:I")        \
  X(179, sub_scaled_int, "III:I") X(180, addcmul_int, "IIII:I")                                \
  /* random numbers from (element index, seed low, seed high, counter): Philox 4x32-10 */       \
  X(192, random_bits, "IIII:I")    /* 31 random bits, non-negative */                          \
  X(193, random_uniform, "IIII:F") /* [0, 1) in steps of 2^-24 */                              \
  X(194, random_normal, "IIII:F")
// Reduction steps; the second operand of `mean` is the count.
#define SPYRE_REDUCTION_OPCODES(X)                                                             \
  X(200, sum, "F:F") X(201, mean, "FF:F") X(202, amax, "F:F") X(203, amin, "F:F")              \
  X(204, prod, "F:F") X(205, sum_squares, "F:F") X(208, sum_int, "I:I") X(209, amax_int, "I:I") X(210, amin_int, "I:I")   \
  X(211, prod_int, "I:I")
// Matmul steps; the second operand of `batchmatmul_int8` is SENINT8.
#define SPYRE_MATMUL_OPCODES(X) X(220, batchmatmul, "FF:F") X(221, batchmatmul_int8, "FI:F")
// Gather steps: table, index.
#define SPYRE_GATHER_OPCODES(X) X(224, gather, "FI:F") X(225, gather_int, "II:I")
// Scatter steps: source, index; the result is the table.
#define SPYRE_SCATTER_OPCODES(X)                                                               \
  X(226, scatter, "FI:F") X(227, scatter_add, "FI:F") X(228, scatter_prod, "FI:F")             \
  X(229, scatter_amax, "FI:F") X(230, scatter_amin, "FI:F") X(231, scatter_int, "II:I")        \
  X(232, scatter_add_int, "II:I") X(233, scatter_prod_int, "II:I")                             \
  X(234, scatter_amax_int, "II:I") X(235, scatter_amin_int, "II:I")
// Argsort steps.
#define SPYRE_ARGSORT_OPCODES(X)                                                               \
  X(236, argsort, "F:I") X(237, argsort_descending, "F:I") X(238, argsort_int, "I:I")          \
  X(239, argsort_int_descending, "I:I")
// Scan steps; the _index forms give positions.
#define SPYRE_SCAN_OPCODES(X)                                                                  \
  X(240, cumsum, "F:F") X(241, cumprod, "F:F") X(242, cummax_index, "F:I")                     \
  X(243, cummin_index, "F:I") X(244, logcumsumexp, "F:F") X(245, cumsum_int, "I:I")            \
  X(246, cumprod_int, "I:I") X(247, cummax_index_int, "I:I") X(248, cummin_index_int, "I:I")
// One list per kind of step, but for Restickify, which takes the two identities.
#define SPYRE_OPCODE_LISTS(X)                                                                  \
  X(Pointwise, SPYRE_POINTWISE_OPCODES) X(Reduction, SPYRE_REDUCTION_OPCODES)                  \
  X(Matmul, SPYRE_MATMUL_OPCODES) X(Gather, SPYRE_GATHER_OPCODES)                              \
  X(Scatter, SPYRE_SCATTER_OPCODES) X(Argsort, SPYRE_ARGSORT_OPCODES)                          \
  X(Scan, SPYRE_SCAN_OPCODES)
// clang-format on

enum class Opcode : uint16_t {
#define SPYRE_OPCODE(value, name, signature) name = value,
#define SPYRE_LIST(group, list) list(SPYRE_OPCODE)
  SPYRE_OPCODE_LISTS(SPYRE_LIST)
#undef SPYRE_LIST
#undef SPYRE_OPCODE
};
inline constexpr int kOpcodes = 256;
inline constexpr int kMaxInputs = 4;

enum class OpcodeGroup : uint8_t {
  None,
#define SPYRE_LIST(group, list) group,
  SPYRE_OPCODE_LISTS(SPYRE_LIST)
#undef SPYRE_LIST
};

struct OpcodeInfo {
  std::string_view name;       // empty: no such opcode
  std::string_view signature;  // "FF:F"
  int inputs = 0;
  OpcodeGroup group = OpcodeGroup::None;
};
// The row for a value; a row with an empty name for a value that is no opcode.
const OpcodeInfo& opcode_info(uint16_t value);
inline OpcodeGroup opcode_group(uint16_t value) { return opcode_info(value).group; }

// Does a Scan with this operation give positions instead of values?
constexpr bool gives_positions(Opcode opcode) {
  return opcode == Opcode::cummax_index || opcode == Opcode::cummin_index ||
         opcode == Opcode::cummax_index_int || opcode == Opcode::cummin_index_int;
}

}  // namespace spyre
