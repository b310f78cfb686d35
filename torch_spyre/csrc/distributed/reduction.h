// The values of all ranks made one: in fp32 or int32, in the order of the ranks, with one rounding
// to the card's format at the end.
//
// So the bits depend neither on where in a tensor an element lies nor on how the work was divided:
// all_reduce, reduce and reduce_scatter agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "card/formats.h"

namespace spyre::distributed {

enum class Reduction : uint8_t { Sum, Average, Product, Min, Max, And, Or, Xor };

// What an element is, beyond the format that holds it.
enum class Meaning : uint8_t { Number, Byte, Truth };  // Byte: uint8, in 32 bits on the card

// "" or why there is no such reduction.
std::string why_not(Reduction what, DataFormat format, Meaning meaning);

// `inputs` has one pointer per rank to `n` elements each.
void reduce(Reduction what, DataFormat format, Meaning meaning,
            std::span<const std::byte* const> inputs, int64_t n, std::byte* out);

}  // namespace spyre::distributed
