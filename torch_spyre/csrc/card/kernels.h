// The vector code of the card: widen, compute, narrow, and move with conversion.
//
// Every kernel exists once as source (`kernels/*.inl`) and three times as machine code
// (x86-64-v4, x86-64-v3, baseline). The result bits are the same in all three. The best version
// for this host is chosen once; `SPYRE_CARD_ISA=v4|v3|baseline` (or `select_isa`) forces one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "formats.h"
#include "opcodes.h"

namespace spyre::kernels {

// The unit of work between a load and a store: 32 sticks of the 16-bit formats, which as 32-bit
// words for three operands and a result stay inside a host core's L1/L2.
inline constexpr int64_t kBlockElements = 2048;

// A widened element: the bits of an fp32 or of an int32, by the domain of its format.
using Word = uint32_t;

using Load = void (*)(const std::byte* from, Word* to, int64_t n);
using Store = void (*)(const Word* from, std::byte* to, int64_t n);
// The first element of each of `count` sticks, `stride` bytes apart, repeated over `lanes` words.
using LoadFirst = void (*)(const std::byte* from, int64_t stride, int64_t count, Word* to,
                           int64_t lanes);
// In place, what a store and a load would make of the words.
using Round = void (*)(Word* words, int64_t n);
// `in[i]` and `out` hold n words each; `out` may be the same array as any input.
using Pointwise = void (*)(const Word* const* in, Word* out, int64_t n);

// An operand of a direct operation: 64 elements for each stick of the result, `stride` bytes apart.
struct DirectInput {
  enum class Kind : uint8_t {
    Words,      // widened
    Stick,      // SEN169, as it is stored
    FirstWord,  // one word for all 64
    FirstHalf,  // one element of SEN169 for all 64
  };
  Kind kind;
  const std::byte* from;
  int64_t stride;
};
// An operation on sticks of SEN169 from widening to rounding, in the host's registers. The bits are
// those of loading, computing and storing one after the other. A stick is written after all of its
// own inputs have been read. There are words or stored results, or both.
struct DirectSticks {
  std::array<DirectInput, 2> in;
  int64_t count;      // of sticks
  Word* words;        // the rounded results, one stick after the other; null: nobody reads them
  std::byte* stored;  // the results as they are stored; null: nowhere
  int64_t stride;     // of `stored`
  bool is_streamed;   // `stored` is written past the host's caches; `fence` follows
};
using Direct = void (*)(const DirectSticks& sticks);
// Returns how many values did not fit the destination (int64 beyond 32 bits).
using Convert = int64_t (*)(const std::byte* from, std::byte* to, int64_t n);

// C += A * B for blocks of widened elements: `rows` x `k` times `k` x `columns`, a multiple
// of 32.
inline constexpr int kProductDepth = 256;                  // the largest k
inline constexpr int kProductStride = kProductDepth + 16;  // of A's rows: not all in one cache set
struct Product {
  const Word* a;
  const Word* b;
  Word* c;
  int64_t b_stride;  // from one row of B to the next; C's rows follow each other
  int64_t k;
  int rows;
  int columns;
  bool is_first;  // C is not read: it starts from zeros
  bool is_last;   // C is complete: every NaN becomes the card's
};

// A reduction: combines values with an operation that has a neutral element.
struct Reduction {
  // words[i] = words[i] op element i, for n elements in a row and `count` such rows, `stride` bytes
  // apart, one after the other.
  using Accumulate = void (*)(const std::byte* from, int64_t stride, int64_t count, Word* words,
                              int64_t n);
  Word neutral;
  std::array<Accumulate, kDataFormats> accumulate;  // null: widen first, then `words`
  Accumulate words;
  // words[i] = words[i] op partial result i.
  void (*merge)(const Word* from, Word* words, int64_t n);
  // A binary tree over the lanes of each row; the result of row r goes to words[r].
  void (*combine_lanes)(Word* words, int64_t rows, int lanes);
  // The last touch before rounding: a mean is divided by `count`.
  void (*finish)(Word* words, int64_t n, Word count);
};
inline constexpr size_t kFirstReduction = static_cast<size_t>(Opcode::sum);
inline constexpr size_t kReductions = 12;

using Multiply = void (*)(const Product& product);
// The same for few rows, with B as it is stored: `b` in place of the product's, whose stride counts
// bytes.
using Stream = void (*)(const Product& product, const std::byte* b);

struct Table {
  const char* isa;
  std::array<Load, kDataFormats> load;         // null where the format is not computable
  std::array<Load, kDataFormats> load_factor;  // as the array takes it: bytes become fp32, too
  std::array<Store, kDataFormats> store;       // rounds as the arithmetic units do
  std::array<LoadFirst, kDataFormats> load_first;
  std::array<Round, kDataFormats> round;      // null also where words are stored as they are
  std::array<Pointwise, kOpcodes> pointwise;  // null where the opcode is not pointwise
  std::array<Direct, kOpcodes> direct;        // null: load, compute and store
  void (*fence)();  // makes streamed results of this thread visible before what it writes next
  std::array<std::array<Convert, kDataFormats>, kHostFormats> to_card;  // null: no such pair
  std::array<std::array<Convert, kDataFormats>, kHostFormats> to_host;
  // Moves a tile: element (i, j) from `from + i*from_row + j*from_col` to
  // `to + i*to_row + j*to_col` (byte strides), elements of 1, 2, 4 or 8 bytes.
  void (*move_tile)(int element_bytes, const std::byte* from, int64_t from_row, int64_t from_col,
                    std::byte* to, int64_t to_row, int64_t to_col, int64_t rows, int64_t cols);
  Multiply multiply;
  std::array<Stream, kDataFormats> stream;  // null: there is none, widen B and multiply
  int stream_rows;                          // up to this many; for more, widening B once is cheaper
  std::array<Reduction, kReductions> reduction;  // by opcode, from kFirstReduction on
};

enum class Isa : uint8_t { Baseline, V3, V4 };

const Table& table();         // the chosen version
bool isa_available(Isa isa);  // can this host run it?
void select_isa(Isa isa);     // throws std::invalid_argument when it can't
Isa selected_isa();

// A loop nest that moves elements, converting on the way. Strides are in bytes.
inline constexpr int kMaxRank = 8;
struct CopyNest {
  int rank = 0;
  std::array<int64_t, kMaxRank> extent{};
  std::array<int64_t, kMaxRank> from_stride{};
  std::array<int64_t, kMaxRank> to_stride{};
};

// How one element changes on the way: sizes and, unless the bits stay the same, a converter.
struct Codec {
  int from_bytes = 0;
  int to_bytes = 0;
  Convert convert = nullptr;  // null: move the bits
};

// The codec of a DMA transfer, for a pair that `can_convert`. Pairs that hold the same bits on both
// sides get no converter: moving bits is faster.
bool is_bit_move(HostFormat host, DataFormat device);
Codec codec_to_card(HostFormat host, DataFormat device);
Codec codec_to_host(HostFormat host, DataFormat device);

// Drops size-1 loops, merges loops that nest on both sides, and orders the loops so that
// the last one is the best to run along.
CopyNest simplify(const CopyNest& nest);

// Runs the nest on the calling thread. Returns the number of values that did not fit.
// Split a nest over threads with `slice`.
int64_t run_copy(const CopyNest& nest, const Codec& codec, const std::byte* from, std::byte* to);

// Cuts a simplified nest into `parts` nearly equal pieces along its outermost useful loop; piece
// `index` is returned with the byte offsets at which it starts. An empty piece has extent 0.
struct NestSlice {
  CopyNest nest;
  int64_t from_offset = 0;
  int64_t to_offset = 0;
};
NestSlice slice(const CopyNest& nest, int parts, int index);

}  // namespace spyre::kernels
