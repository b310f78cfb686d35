// The card program: what the back end writes and the card executes.
//
// Little-endian, version 2. A program is one block of bytes: the header, then these tables, each
// starting where the one before it ended (all records are multiples of 8 bytes):
//
//   symbols   what a launch binds: addresses of tensors, scalar values, valid lengths
//   operands  how a step walks a tensor: byte strides per dimension, bases per core
//   steps     opcode, participating cores, extents
//   masks     which positions along a reduced dimension count
//   nodes     the loop tree in prefix order
//   bases     int64, byte offsets at which cores start
//   extents   int64, extents of the iteration dimensions
//   constants 32-bit words, padded to a multiple of 8 bytes
//
// **Validation** happens once, at load: after it, no address that a core can form lies outside
// the declared size of the symbol (or LX) it belongs to. A launch then only has to check that
// what is bound is at least as large as declared.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "figures.h"
#include "formats.h"
#include "opcodes.h"

namespace spyre {

inline constexpr int kCores = 32;
inline constexpr int64_t kLxBytes = 2 * 1024 * 1024;
inline constexpr int64_t kLxReserved = 64 * 1024;                // program and debug
inline constexpr int64_t kSpanBytes = 256 * 1024 * 1024 - 4096;  // 255.996 MiB
inline constexpr int kStepRank = 8;
inline constexpr int kLoopDepth = 4;

inline constexpr uint32_t kProgramMagic = 0x43505953;  // "SYPC"
inline constexpr uint16_t kProgramVersion = 2;

struct ProgramHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t reserved;
  uint32_t size;  // of the whole program in bytes
  uint32_t symbols, operands, steps, masks, nodes, bases, extents, constants;  // entries
  uint32_t padding;                                                            // 0
};
static_assert(sizeof(ProgramHeader) == 48);

enum class SymbolKind : uint8_t {
  Address = 0,  // of a tensor in device memory; `bytes` is the size the program relies on
  Scalar = 1,   // a 32-bit word in the widened domain of `format` (fp32 or int32 bits); the card
                // sees it as a one-element tensor in the launch block
  Extent = 2,   // a valid length, for masks; `bytes` is its maximum, format IEEE_INT32
};

struct SymbolRecord {
  uint8_t kind;
  uint8_t format;
  uint8_t is_written;  // Address: some step writes it
  uint8_t reserved[5];
  int64_t bytes;
};
static_assert(sizeof(SymbolRecord) == 16);

enum class Space : uint8_t {
  Device = 0,    // symbol: an Address
  Lx = 1,        // the core's scratchpad
  Scalar = 2,    // symbol: a Scalar
  Constant = 3,  // symbol: index into the constants
  Iota = 4,      // no memory: an int32 counted from base and strides, which count in elements
  Ring = 5,  // the scratchpads of several cores, for the input of a Ring step; symbol: the first
             // entry in the base table of its owners
};

// How an operand fills the lanes of the sticks of one iteration.
enum class Lanes : uint8_t {
  Vector = 0,   // a stick holds its lanes; addresses are multiples of a stick
  First = 1,    // lane 0 of a stick, repeated over all lanes (sparse and one-element tensors). As
                // the result of a Reduction: the value in lane 0, zeros in the others
  Element = 2,  // one element per iteration, any aligned address: the operands of Restickify
                // steps, the index of Gather and Scatter steps, and what Gather, Scatter,
                // Argsort and Scan steps take and give element by element
};

struct OperandRecord {
  uint8_t space;
  uint8_t format;
  uint8_t lanes;
  uint8_t tail_tiles;  // sticks present in the last iteration of the step's stick dimension on the
                       // `tail_cores`; 0: all. Missing ones read as zeros and are not written
  uint32_t symbol;
  uint32_t base;        // first entry in the base table
  uint32_t base_count;  // 1 (all cores the same) or the number of the step's cores, in core order
  int64_t stride[kStepRank];        // bytes from one iteration to the next, per dimension
  int64_t tile_stride;              // bytes between the sticks of one iteration, where a format
                                    // has fewer elements per stick than the step's widest (among
                                    // its Vector operands in memory); for Iota: the step from
                                    // lane to lane; for the second operand of a Matmul: from one
                                    // row of k to the next; for the table of a Gather or a
                                    // Scatter: from one row to the next
  int64_t loop_stride[kLoopDepth];  // bytes per iteration of the enclosing loops, outermost first
};
static_assert(sizeof(OperandRecord) == 120);

enum class StepKind : uint8_t {
  Pointwise = 0,   // sticks in, sticks out: fill, copy, convert and arithmetic
  Restickify = 1,  // one input, one output, element by element: moves the stick, realigns, and
                   // converts between formats of one domain
  // Accumulates the dimensions in `reduced`, in iteration order (outermost first), in fp32 or
  // int32; one rounding, at the end. If `stick_dim` is among them, every lane keeps a partial
  // result and a binary tree combines the lanes (l with l + lanes/2, then + lanes/4, ...); the
  // result's lanes are First. Otherwise they are Vector and each lane stands for itself. The
  // result's strides along reduced dimensions are 0. `mean` has a second operand, the count by
  // which the sum is divided (Constant or Scalar). May be cut over a `ring`.
  Reduction = 2,
  // C += A * B, fp32, one fused multiply-add per element of k, in k order. `stick_dim` counts the
  // sticks of n, along which B and C are Vectors and A stands still (stride 0). `lane_dim` counts
  // the sticks of k, along which A is a Vector; B takes one stick of n per element of k,
  // `tile_stride` apart. `reduced` are the dimensions of k, `lane_dim` the last of them: C stands
  // still along them. All other dimensions are rows and batches: A and B may stand still there.
  // B has the most elements per stick, or as many as A and C: of those with fewer an iteration
  // takes several sticks, `tile_stride` apart. Of A those that count are read. May be cut over a
  // `ring`.
  Matmul = 3,
  // Row `index` of a table: inputs are the table (`tile_stride` from row to row) and the index
  // (IEEE_INT32, Element). Table and result are Vectors, or both Element: then a row of the table
  // is one element. One mask with dim 0xFF holds the number of rows; an index outside is a fault.
  Gather = 4,
  // Relayout: every core collects a slice of its own from the scratchpads of other cores, its
  // owners, over the data ring. One input (Space::Ring) and a result in LX, both Vectors of one
  // format. `ring` is how many owners each core has: a part of its slice comes from each. The
  // dimensions in `reduced` count the parts, in iteration order; the input stands still along them,
  // for all owners have their part at the same address. The base table names the owners, `ring` of
  // them for each core that takes part, in core order; a core may be its own. All cores wait before
  // such a step and after it. No owner may write what is read.
  Ring = 5,
  // The reverse of Gather: inputs are the source and the index, the result is the table, which is
  // written, or combined with the source, at the rows that the index names. In iteration order, on
  // one core, so that the last of several writes to one place stays. Accumulates in fp32 or int32
  // and rounds at each write. NaN wins in amax and amin.
  Scatter = 6,
  // Element, one input. The positions (IEEE_INT32) of the elements along the one dimension in
  // `reduced` in ascending or descending order; equal ones stay in theirs. NaN is the largest,
  // zeros are equal.
  Argsort = 7,
  // One input. Every result is made of the elements so far along the one dimension in `reduced`, in
  // fp32 or int32, and rounded once. Element, or Vectors that each lane of which stands for itself:
  // then the dimension is not the stick dimension. The _index operations give the position
  // (IEEE_INT32) of the largest or smallest element so far: of equal ones the last, of NaN the
  // last.
  Scan = 8,
};

inline constexpr int kStepKinds = 9;

inline constexpr uint8_t kNoStickDim = 0xFF;

enum StepFlags : uint32_t {
  kBarrierBefore = 1,  // reads what another core wrote in an earlier step
  kChained = 2,        // Pointwise, as is the step before it in the same body: same cores, extents
                       // and stick dimension, and what it reads of that step's result it reads at
                       // the iteration that wrote it. Both may run block by block
  kDiscarded = 4,      // nothing but steps chained to this one reads its result, which is in LX:
                       // it need not be stored
};

struct StepRecord {
  uint16_t opcode;
  uint8_t kind;
  uint8_t rank;  // iteration dimensions, outermost first; lanes are not among them
  uint32_t flags;
  uint32_t cores;          // bit mask
  uint32_t first_operand;  // inputs, then outputs
  uint8_t inputs;
  uint8_t outputs;
  uint8_t stick_dim;      // the dimension that counts stick tiles; 0xFF: none
  uint8_t lane_dim;       // Matmul: the dimension that counts sticks of k; 0xFF: not a Matmul
  uint32_t extent;        // first entry in the extent table
  uint32_t extent_count;  // 1 row of `rank` entries, or a row per participating core
  uint32_t tail_cores;    // cores whose slice of the stick dimension ends with a partial tile
  uint32_t first_mask;
  uint8_t masks;    // how many
  uint8_t reduced;  // Reduction, Matmul: bit per dimension that is accumulated; Argsort, Scan: the
                    // bit of the dimension along which they go; Ring: of those that count owners
  uint8_t ring;     // Reduction, Matmul: cores that make a result together; 0: each makes its own.
                    // Ring: owners of a core's parts
  uint8_t padding;
};
static_assert(sizeof(StepRecord) == 40);

// A *ring* is a group of cores that each accumulate a part of the same results. Its partners are
// neighbours: the first `ring` cores of the step form the first group, the next ones the second.
// Along dimensions that are not accumulated they have the same iterations. Each makes partial
// results of its own part as a core alone would make results; of a Reduction along the stick
// dimension, one per lane. These go round in core order and are combined as they come, the first
// with the second, that with the third, in fp32 or int32. Lanes are combined, a mean is divided and
// results are rounded once, after the last. Every partner gets the results and stores them at its
// own place, in its LX say. Where partners have one place for them, in device memory, the first one
// writes them. Which of the two it is, is the same in all rings of a step.

// Positions along a dimension that count; the others are the neutral element of a Reduction, and
// zeros (neither read nor multiplied) along k of a Matmul. A position is the core's base plus the
// iteration index, which along `stick_dim` (Matmul: `lane_dim`) counts in elements: index times
// lanes plus lane. It counts if it is below the valid length.
struct MaskRecord {
  uint8_t dim;        // a reduced dimension; 0xFF: the rows of a Gather's or Scatter's table
  uint8_t is_symbol;  // `valid` is an Extent symbol, else an entry of the extent table
  uint16_t padding;
  uint32_t valid;
  uint32_t base;        // first entry in the base table; positions, not bytes
  uint32_t base_count;  // 1 or the number of the step's cores
  int64_t loop_stride[kLoopDepth];
};
static_assert(sizeof(MaskRecord) == 48);

enum class NodeKind : uint32_t { Step = 0, Loop = 1 };

struct NodeRecord {
  uint32_t kind;
  uint32_t step;   // Step: which
  uint32_t count;  // Loop: how often
  uint32_t size;   // Loop: how many nodes belong to its body, all levels; they follow it
};
static_assert(sizeof(NodeRecord) == 16);

// Why a program was rejected. The message names the table, the entry and the reason.
class ProgramError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A validated program with the figures that launches need. Immutable, shared by launches.
struct Program {
  ProgramHeader header{};
  std::vector<SymbolRecord> symbols;
  std::vector<OperandRecord> operands;
  std::vector<StepRecord> steps;
  std::vector<MaskRecord> masks;
  std::vector<NodeRecord> nodes;
  std::vector<int64_t> bases;
  std::vector<int64_t> extents;
  std::vector<uint32_t> constants;

  // Derived at load.
  std::vector<StepFigures> figures;  // one per step
  int64_t nanoseconds = 0;           // modelled duration of one launch
  int64_t bytes_read = 0;            // device memory, distinct sticks per step
  int64_t bytes_written = 0;
  int64_t sfp_busy = 0, pt_busy = 0, memory_busy = 0, lx_busy = 0;  // ns
  std::array<int64_t, kCores> lx_high_water{};  // highest LX address used plus one, per core
  int64_t work = 0;              // elements touched: decides whether threads are worth waking
  std::vector<int32_t> lanes;    // per step: elements of one iteration
  std::vector<uint8_t> barrier;  // per node: Step, needs one before it; Loop, has one inside
};

// Parses and validates. Throws ProgramError; never reads outside `bytes`.
std::shared_ptr<const Program> load_program(std::span<const std::byte> bytes);

}  // namespace spyre
