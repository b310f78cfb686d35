// Everything one version of the kernels consists of, and its table.

#include "codec.inl"
#include "convert.inl"
#include "math.inl"
#include "matmul.inl"
#include "pointwise.inl"
#include "pointwise_direct.inl"
#include "reduction.inl"
#include "special.inl"
#include "tile.inl"

static consteval void put_codecs(Table& table) {
#define SPYRE_FORMAT(name, Codec)                                               \
  table.load[static_cast<size_t>(DataFormat::name)] = &load<Codec>;             \
  table.store[static_cast<size_t>(DataFormat::name)] = &store<Codec>;           \
  table.load_first[static_cast<size_t>(DataFormat::name)] = &load_first<Codec>; \
  table.round[static_cast<size_t>(DataFormat::name)] = round_of<Codec>();
  SPYRE_FORMAT(SEN169_FP16, Sen169)
  SPYRE_FORMAT(IEEE_FP32, Fp32)
  SPYRE_FORMAT(SEN143_FP8, Sen143)
  SPYRE_FORMAT(SEN152_FP8, Sen152)
  SPYRE_FORMAT(SEN153_FP9, Sen153)
  SPYRE_FORMAT(SENINT8, Int8)
  SPYRE_FORMAT(SENINT16, Int16)
  SPYRE_FORMAT(SENINT24, Int24)
  SPYRE_FORMAT(IEEE_INT32, Int32)
  SPYRE_FORMAT(SENUINT32, Int32)
  SPYRE_FORMAT(IEEE_FP16, Fp16)
  SPYRE_FORMAT(BOOL, Bool)
  SPYRE_FORMAT(BFLOAT16, Bf16)
  SPYRE_FORMAT(SEN18F_FP24, Sen18f)
#undef SPYRE_FORMAT
  table.load[static_cast<size_t>(DataFormat::SEN169_FP16)] = &load_sen169;
  table.store[static_cast<size_t>(DataFormat::SEN169_FP16)] = &store_sen169;
  table.load_factor = table.load;
  table.load_factor[static_cast<size_t>(DataFormat::SENINT8)] = &load<Int8Factor>;
}

static consteval void put_pair(Table& table, HostFormat host, DataFormat card, Convert to_card,
                               Convert to_host) {
  table.to_card[static_cast<size_t>(host)][static_cast<size_t>(card)] = to_card;
  table.to_host[static_cast<size_t>(host)][static_cast<size_t>(card)] = to_host;
}

static consteval void put_conversions(Table& table) {
  using H = HostFormat;
  using D = DataFormat;
#define SPYRE_FLOATS(host, Codec)                                                                \
  put_pair(table, host, D::SEN169_FP16, &float_to_card<Codec, Sen169>,                           \
           &float_to_host<Codec, Sen169>);                                                       \
  put_pair(table, host, D::IEEE_FP32, &float_to_card<Codec, Fp32>, &float_to_host<Codec, Fp32>); \
  put_pair(table, host, D::IEEE_FP16, &float_to_card<Codec, Fp16>, &float_to_host<Codec, Fp16>); \
  put_pair(table, host, D::BFLOAT16, &float_to_card<Codec, Bf16>, &float_to_host<Codec, Bf16>);  \
  put_pair(table, host, D::SEN143_FP8, &float_to_card<Codec, Sen143>,                            \
           &float_to_host<Codec, Sen143>);                                                       \
  put_pair(table, host, D::SEN152_FP8, &float_to_card<Codec, Sen152>,                            \
           &float_to_host<Codec, Sen152>);
  SPYRE_FLOATS(H::Float32, Fp32)
  SPYRE_FLOATS(H::Float16, Fp16)
  SPYRE_FLOATS(H::BFloat16, Bf16)
#undef SPYRE_FLOATS
  put_pair(table, H::Float16, D::SEN169_FP16, &fp16_to_sen169, &sen169_to_fp16);
  put_pair(table, H::Float32, D::IEEE_FP32, &move_bits<4>, &move_bits<4>);
  put_pair(table, H::Float16, D::IEEE_FP16, &move_bits<2>, &move_bits<2>);
  put_pair(table, H::BFloat16, D::BFLOAT16, &move_bits<2>, &move_bits<2>);
  put_pair(table, H::Float8E4M3, D::SEN143_FP8, &move_bits<1>, &move_bits<1>);
  put_pair(table, H::Float8E5M2, D::SEN152_FP8, &move_bits<1>, &move_bits<1>);
  put_pair(table, H::Int8, D::SENINT8, &move_bits<1>, &move_bits<1>);
  put_pair(table, H::Int16, D::SENINT16, &move_bits<2>, &move_bits<2>);
  put_pair(table, H::Int32, D::IEEE_INT32, &move_bits<4>, &move_bits<4>);
  put_pair(table, H::Int64, D::IEEE_INT32, &int64_to_card, &int64_to_host);
  put_pair(table, H::Int64, D::IEEE_INT64, &move_bits<8>, &move_bits<8>);
  put_pair(table, H::UInt8, D::SENUINT32, &uint8_to_card, &uint8_to_host);
  put_pair(table, H::Bool, D::SEN169_FP16, &float_to_card<Bool, Sen169>,
           &float_to_host<Bool, Sen169>);
  put_pair(table, H::Bool, D::BOOL, &float_to_card<Bool, Bool>, &float_to_host<Bool, Bool>);
}

static consteval Table make_table(const char* isa) {
  Table table{};
  table.isa = isa;
  put_codecs(table);
  put_conversions(table);
#define SPYRE_OPCODE(value, name, signature) table.pointwise[value] = &op_##name;
  SPYRE_POINTWISE_OPCODES(SPYRE_OPCODE)
#undef SPYRE_OPCODE
#if SPYRE_FMA_WIDTH != 0
  direct::put_all(table);
  table.fence = &direct::fence;
#endif
  table.move_tile = &move_tile;
  table.multiply = &matmul::multiply;
#if SPYRE_FMA_WIDTH != 0
  table.stream_rows = 4 * matmul::kStreamRows;
  const auto put_stream = [&](DataFormat format, Stream stream) {
    table.stream[static_cast<size_t>(format)] = stream;
  };
  put_stream(DataFormat::SEN169_FP16, &matmul::stream<matmul::Sen169Numbers>);
  put_stream(DataFormat::SEN143_FP8, &matmul::stream<matmul::Fp8Columns<Sen143>>);
  put_stream(DataFormat::SEN152_FP8, &matmul::stream<matmul::Fp8Columns<Sen152>>);
  put_stream(DataFormat::SENINT8, &matmul::stream<matmul::Int8Columns>);
#endif
  reduction::put_all(table);
  return table;
}
