#include "convert/formats/gguf/gguf_tensors.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "convert/formats/gguf/gguf_config.h"
#include "convert/tensors/source_config.h"
#include "convert/work/journal_syncer.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/parallel_for.h"
#include "engine/base/quoted.h"
#include "engine/formats/gguf/gguf_joined.h"
#include "engine/model/families/family.h"

namespace tandem::convert {
namespace {

using engine::DType;
using engine::GgufChange;
using engine::ModelConfig;
using engine::WeightKind;
using engine::WeightSpec;

// Elements per worker at a time, unless one row is longer.
constexpr int64_t kWritePieceElements = 1 << 18;
constexpr int64_t kBlockElements = 32;

bool IsNegativeExp(GgufChange change) {
  return change == GgufChange::kNegativeExp || change == GgufChange::kNegativeExpColumn;
}

GgufNumbers NumbersOf(DType dtype) {
  if (dtype == DType::kF16) return GgufNumbers::kF16;
  return dtype == DType::kBF16 ? GgufNumbers::kBF16 : GgufNumbers::kF32;
}

// GGUF readers accept only floats for norms, biases, positions and taps of convolutions.
GgufNumbers ChooseNumbers(const GgufTensorInfo& info, bool makes_logits, bool stays_f32,
                          DType source, const std::string& dtype) {
  if (info.shape.size() < 2 || info.name == "position_embd.weight" || stays_f32)
    return GgufNumbers::kF32;
  const GgufNumbers numbers = dtype.empty() ? NumbersOf(source) : GgufNumbersOf(dtype);
  if (!IsBlocked(numbers)) return numbers;
  if (info.shape.back() % kBlockElements != 0) return GgufNumbers::kF32;
  // Four bits in the logit matrix cost more accuracy than they save bytes.
  return numbers == GgufNumbers::kQ4_0 && makes_logits ? GgufNumbers::kQ8_0 : numbers;
}

int64_t RequireWeight(const ModelSource& source, const WeightSpec& spec) {
  const int64_t found = FindWeight(source, spec);
  if (found < 0) {
    throw Error(ErrorCode::kDataLoss,
                source.name() + ": tensor " + Quoted(spec.name) + " is missing");
  }
  if (source.tensors()[static_cast<size_t>(found)].view.shape != spec.source_shape) {
    throw Error(ErrorCode::kDataLoss, source.name() + ": tensor " + Quoted(spec.name) +
                                          " has a shape that does not match config.json");
  }
  return found;
}

// Sets the shape in the file, and the sizes that the change needs.
void SetShape(const ModelConfig& config, const WeightSpec& spec, GgufTensor& tensor) {
  const engine::AttentionSpec& attention = config.attention;
  std::vector<int64_t>& shape = tensor.info.shape = spec.source_shape;
  tensor.key_dim = attention.head_dim - config.latent.rope_dim;
  tensor.value_dim = attention.v_head_dim;
  switch (tensor.change) {
    case GgufChange::kQueryPairs:
      tensor.heads = attention.n_heads;
      break;
    case GgufChange::kKeyPairs:
      tensor.heads = attention.n_kv_heads;
      break;
    case GgufChange::kTransposed:
      std::reverse(shape.begin(), shape.end());
      break;
    case GgufChange::kOneRow:
      shape.erase(shape.begin());
      break;
    case GgufChange::kTaps:
      if (shape.size() == 3) shape.erase(shape.begin() + 1);  // a bias has one axis
      break;
    case GgufChange::kNegativeExpColumn:
    case GgufChange::kColumn:
      shape.push_back(1);
      break;
    case GgufChange::kGroups:
      shape = {config.recurrent.scan.n_groups, shape.front() / config.recurrent.scan.n_groups};
      break;
    case GgufChange::kLatentKeys:
      shape = {attention.n_heads, config.latent.kv_rank, tensor.key_dim};
      break;
    case GgufChange::kLatentValues:
      shape = {attention.n_heads, tensor.value_dim, config.latent.kv_rank};
      break;
    case GgufChange::kNone:
    case GgufChange::kNegativeExp:
    case GgufChange::kPlus1:
    case GgufChange::kFirstHalf:
    case GgufChange::kSecondHalf:
      break;
  }
}

std::vector<int64_t> OrderOf(const ModelConfig& config, const engine::GgufOrder& order) {
  std::vector<int64_t> places;
  for (int64_t i = 0; i < order.count(config); ++i) places.push_back(order.of(config, i));
  return places;
}

// Readers take these as f32 whatever the matrices have.
bool StaysF32(GgufChange change) {
  return change == GgufChange::kTaps || change == GgufChange::kColumn ||
         change == GgufChange::kGroups || IsNegativeExp(change);
}

void SetFactors(const engine::GgufArchitecture& architecture, const ModelConfig& config,
                GgufTensor& tensor) {
  if (architecture.factor == nullptr) return;
  TANDEM_CHECK(tensor.rows.empty());
  for (int64_t row = 0; row < tensor.info.shape.front(); ++row) {
    tensor.factors.push_back(architecture.factor(config, tensor.weight, row));
  }
  const auto is_one = [](float factor) { return factor == 1; };
  if (std::ranges::all_of(tensor.factors, is_one)) tensor.factors.clear();
}

// The file's tensor `name`, or a part of it, of the weight.
GgufTensor PlanTensor(const engine::GgufArchitecture& architecture, const ModelConfig& config,
                      const ModelSource& source, const WeightSpec& spec,
                      const engine::GgufName& name, const std::string& dtype) {
  GgufTensor tensor;
  tensor.info.name = name.name;
  tensor.weight = spec.name;
  tensor.expert = name.expert;
  tensor.change = name.change;
  if (name.change == GgufChange::kFirstHalf) tensor.half = 0;
  if (name.change == GgufChange::kSecondHalf) tensor.half = 1;
  tensor.source = RequireWeight(source, spec);
  SetShape(config, spec, tensor);
  if (name.rows != nullptr) {
    tensor.rows = OrderOf(config, *name.rows);
    tensor.info.shape.front() = static_cast<int64_t>(tensor.rows.size());
  }
  if (name.columns != nullptr) tensor.columns = OrderOf(config, *name.columns);
  SetFactors(architecture, config, tensor);
  const bool makes_logits =
      name.name == (config.tied_embeddings ? "token_embd.weight" : "output.weight");
  tensor.info.numbers =
      ChooseNumbers(tensor.info, makes_logits, StaysF32(tensor.change),
                    source.tensors()[static_cast<size_t>(tensor.source)].view.dtype, dtype);
  return tensor;
}

// Reads rows [first, first + count) of a file tensor from the whole source tensor.
class RowReader {
 public:
  RowReader(const GgufTensor& tensor, const engine::ConstTensorView& view, const std::byte* data)
      : tensor_(tensor), data_(data), dtype_(view.dtype) {
    rows_ = tensor.info.shape.front();
    row_elements_ = engine::ElementCount(tensor.info.shape) / std::max<int64_t>(rows_, 1);
    if (tensor.info.shape.size() == 1) row_elements_ = 1;
  }

  int64_t rows() const { return rows_; }
  int64_t row_elements() const { return row_elements_; }

  void Read(int64_t first, int64_t count, std::vector<float>* out) const {
    out->resize(static_cast<size_t>(count * row_elements_));
    if (tensor_.change == GgufChange::kTransposed && tensor_.info.shape.size() == 2) {
      ReadColumns(first, count, out->data());
    } else if (tensor_.change == GgufChange::kQueryPairs ||
               tensor_.change == GgufChange::kKeyPairs) {
      for (int64_t i = 0; i < count; ++i) {
        Decode(SourceRow(first + i) * row_elements_, row_elements_,
               out->data() + i * row_elements_);
      }
    } else if (!tensor_.rows.empty() || !tensor_.columns.empty()) {
      for (int64_t i = 0; i < count; ++i) {
        ReadOrdered(first + i, out->data() + i * row_elements_);
      }
    } else if (tensor_.change == GgufChange::kLatentKeys) {
      for (int64_t i = 0; i < count; ++i) {
        ReadLatentKeys(first + i, out->data() + i * row_elements_);
      }
    } else if (tensor_.change == GgufChange::kLatentValues) {
      const int64_t latent = tensor_.info.shape.back();
      for (int64_t i = 0; i < count; ++i) {
        Decode((first + i) * tensor_.key_dim * latent + (first + i) * row_elements_ +
                   tensor_.key_dim * latent,
               row_elements_, out->data() + i * row_elements_);
      }
    } else {
      Decode(first * row_elements_, count * row_elements_, out->data());
    }
    if (!tensor_.factors.empty()) MultiplyRows(tensor_, first, *out);
    if (IsNegativeExp(tensor_.change)) {
      for (float& value : *out) value = engine::NegativeExp(value);
    }
    if (tensor_.change != GgufChange::kPlus1) return;
    for (float& value : *out) value += 1;
  }

 private:
  void Decode(int64_t element, int64_t count, float* out) const {
    engine::ConvertToF32(
        {data_ + element * static_cast<int64_t>(DTypeBytes(dtype_)), dtype_, {count}},
        {out, static_cast<size_t>(count)});
  }
  // In a head the file alternates rows of the first half with their partners of the second.
  int64_t SourceRow(int64_t row) const {
    const int64_t head_rows = rows_ / tensor_.heads;
    const int64_t in_head = row % head_rows;
    return row - in_head + in_head % 2 * (head_rows / 2) + in_head / 2;
  }
  void ReadOrdered(int64_t row, float* out) const {
    const int64_t at = tensor_.rows.empty() ? row : tensor_.rows[static_cast<size_t>(row)];
    if (tensor_.columns.empty()) return Decode(at * row_elements_, row_elements_, out);
    std::vector<float> values(static_cast<size_t>(row_elements_));
    Decode(at * row_elements_, row_elements_, values.data());
    for (const int64_t column : tensor_.columns) *out++ = values[static_cast<size_t>(column)];
  }
  // The transpose of a head's rows of keys, which its values follow.
  void ReadLatentKeys(int64_t head, float* out) const {
    const int64_t key = tensor_.key_dim, latent = tensor_.info.shape[1];
    std::vector<float> rows(static_cast<size_t>(key * latent));
    Decode(head * (key + tensor_.value_dim) * latent, key * latent, rows.data());
    for (int64_t i = 0; i < key; ++i) {
      for (int64_t r = 0; r < latent; ++r)
        out[r * key + i] = rows[static_cast<size_t>(i * latent + r)];
    }
  }
  // Reads columns, since the source has the transpose.
  void ReadColumns(int64_t first, int64_t count, float* out) const {
    std::vector<float> column(static_cast<size_t>(count));
    for (int64_t i = 0; i < row_elements_; ++i) {
      Decode(i * rows_ + first, count, column.data());
      for (int64_t r = 0; r < count; ++r)
        out[r * row_elements_ + i] = column[static_cast<size_t>(r)];
    }
  }

  const GgufTensor& tensor_;
  const std::byte* data_;
  DType dtype_;
  int64_t rows_ = 0;
  int64_t row_elements_ = 0;
};

// Writes all rows of one tensor; the workers read, encode and write pieces.
void WriteRows(const RowReader& reader, const std::string& source_name,
               const GgufFileWriter& writer, ThreadPool& pool, GgufTensor& tensor) {
  // Pieces of several rows are whole blocks, and vectors are never blocked.
  const int64_t rows_at_once =
      std::max<int64_t>(1, kWritePieceElements / std::max<int64_t>(reader.row_elements(), 1));
  const int64_t n_pieces = (reader.rows() + rows_at_once - 1) / rows_at_once;
  std::vector<GgufError> errors(static_cast<size_t>(n_pieces));
  RunAll(pool, n_pieces, [&](int64_t piece, int) {
    const int64_t first = piece * rows_at_once;
    const int64_t count = std::min(rows_at_once, reader.rows() - first);
    std::vector<float> values;
    reader.Read(first, count, &values);
    std::vector<std::byte> bytes(
        static_cast<size_t>(GgufBytes(tensor.info.numbers, static_cast<int64_t>(values.size()))));
    if (!EncodeGguf(tensor.info.numbers, values, bytes, &errors[static_cast<size_t>(piece)])) {
      throw Error(ErrorCode::kDataLoss, source_name + ": tensor " + Quoted(tensor.info.name) +
                                            " has values outside the range of " +
                                            std::string(GgufNumbersName(tensor.info.numbers)) +
                                            "; choose another dtype");
    }
    const int64_t begin = GgufBytes(tensor.info.numbers, first * reader.row_elements());
    writer.Write(tensor.file_tensor, tensor.file_offset + begin, bytes);
  });
  for (const GgufError& error : errors) tensor.error.Add(error);
}

// Journal note: the three numbers of an error in hexadecimal, which is exact.
std::string NoteOf(const GgufError& error) {
  char text[96];
  std::snprintf(text, sizeof text, "%a %a %a", error.max_abs, error.squares, error.source_squares);
  return text;
}

std::optional<GgufError> ParseNote(const std::string& note) {
  GgufError error;
  const char* at = note.c_str();
  for (double* number : {&error.max_abs, &error.squares, &error.source_squares}) {
    char* end = nullptr;
    *number = std::strtod(at, &end);
    if (end == at || !(*number >= 0)) return std::nullopt;
    at = end;
  }
  return *at == '\0' ? std::optional(error) : std::nullopt;
}

// Writes the numbers of a tensor that no source has.
void WriteValues(const GgufFileWriter& writer, const GgufTensor& tensor) {
  if (!tensor.values.empty()) {
    return writer.Write(tensor.file_tensor, 0, std::as_bytes(std::span(tensor.values)));
  }
  const int64_t bytes = GgufBytes(tensor.info.numbers, engine::ElementCount(tensor.info.shape));
  const std::vector<std::byte> zeros(
      static_cast<size_t>(std::min<int64_t>(bytes, kWritePieceElements)));
  for (int64_t at = 0; at < bytes; at += std::ssize(zeros)) {
    const auto count = static_cast<size_t>(std::min(bytes - at, std::ssize(zeros)));
    writer.Write(tensor.file_tensor, at, std::span(zeros).first(count));
  }
}

// A tensor of zeros, of the type that a matrix of the source has.
GgufTensor PlanFiller(const engine::GgufFiller& filler, const ModelSource& source,
                      const std::string& dtype) {
  GgufTensor tensor;
  tensor.info = {.name = filler.name, .shape = filler.shape};
  const DType found = source.tensors().front().view.dtype;
  tensor.info.numbers = ChooseNumbers(tensor.info, false, false, found, dtype);
  return tensor;
}

// Removes tensors that the journal has from `wanted`.
void TakeWritten(const GgufFileWriter& writer, Journal* journal, std::vector<GgufTensor>& tensors,
                 std::multimap<int64_t, size_t>* wanted) {
  if (journal == nullptr) return;
  const std::string file = writer.path().filename().string();
  if (!writer.found()) journal->Drop(file);
  std::erase_if(*wanted, [&](const auto& entry) {
    const std::string* note = journal->Find(file, static_cast<int64_t>(entry.second));
    const auto error = note == nullptr ? std::nullopt : ParseNote(*note);
    if (error) tensors[entry.second].error = *error;
    return error.has_value();
  });
}

}  // namespace

GgufNumbers GgufNumbersOf(const std::string& dtype) {
  if (dtype == "q8_0") return GgufNumbers::kQ8_0;
  if (dtype == "q4_0") return GgufNumbers::kQ4_0;
  return NumbersOf(FloatTypeOf(dtype).value());
}

void MultiplyRows(const GgufTensor& tensor, int64_t first, std::span<float> rows) {
  const auto n_rows = static_cast<size_t>(tensor.info.shape.front());
  const size_t row_elements =
      static_cast<size_t>(engine::ElementCount(tensor.info.shape)) / std::max<size_t>(n_rows, 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] *= tensor.factors[static_cast<size_t>(first) + i / row_elements];
  }
}

std::vector<GgufTensor> PlanGgufTensors(const engine::GgufArchitecture& architecture,
                                        const ModelConfig& config, const ModelSource& source,
                                        const std::string& dtype) {
  std::vector<GgufTensor> tensors;
  for (const GgufRopeTensor& rope : GgufRopeTensors(architecture, config)) {
    GgufTensor& tensor = tensors.emplace_back();
    tensor.info.name = rope.name;
    tensor.info.shape = {static_cast<int64_t>(rope.divisors.size())};
    tensor.values = rope.divisors;
  }
  for (const WeightSpec& spec : engine::FindFamilyByName(config.family).list_weights(config)) {
    const std::vector<engine::GgufName> names = engine::GgufNamesOf(architecture, spec.name);
    if (names.empty()) {
      throw Error(ErrorCode::kUnsupported, source.name() + ": tensor " + Quoted(spec.name) +
                                               " has no counterpart in GGUF's architecture " +
                                               Quoted(architecture.name) +
                                               "; convert the model to hf or native");
    }
    for (const engine::GgufName& name : names) {
      tensors.push_back(PlanTensor(architecture, config, source, spec, name, dtype));
    }
  }
  if (architecture.fillers == nullptr) return tensors;
  for (const engine::GgufFiller& filler : architecture.fillers(config)) {
    tensors.push_back(PlanFiller(filler, source, dtype));
  }
  return tensors;
}

std::vector<GgufTensorInfo> FileTensors(const std::string& source,
                                        std::vector<GgufTensor>& tensors) {
  std::vector<GgufTensorInfo> infos;
  std::map<std::string, size_t> index_of;
  std::vector<std::array<int64_t, 2>> next;  // expert, by file tensor and half
  for (GgufTensor& tensor : tensors) {
    const int64_t halves = tensor.half < 0 ? 1 : 2, half = std::max<int64_t>(tensor.half, 0);
    const auto [found, is_new] = index_of.try_emplace(tensor.info.name, infos.size());
    std::vector<int64_t> whole = tensor.info.shape;  // of an expert
    whole.front() *= halves;
    if (is_new) {
      infos.push_back(tensor.info);
      infos.back().shape = whole;
      if (tensor.expert >= 0) infos.back().shape.insert(infos.back().shape.begin(), 0);
      next.push_back({0, 0});
    }
    GgufTensorInfo& info = infos[found->second];
    tensor.file_tensor = found->second;
    if (tensor.expert < 0 && is_new) continue;
    const auto fail = [&](const std::string& what) {
      throw Error(ErrorCode::kDataLoss, source + ": tensor " + Quoted(tensor.weight) + " " + what +
                                            " in " + Quoted(info.name));
    };
    if (tensor.expert != next[found->second][static_cast<size_t>(half)]++) {
      fail("is not the next expert");
    }
    if (tensor.info.numbers != info.numbers) {
      fail("has the type " + std::string(GgufNumbersName(tensor.info.numbers)) +
           ", but the experts before it have " + std::string(GgufNumbersName(info.numbers)));
    }
    if (!std::equal(whole.begin(), whole.end(), info.shape.begin() + 1, info.shape.end())) {
      fail("does not have the shape of the other experts");
    }
    info.shape[0] = std::max(info.shape[0], tensor.expert + 1);
    tensor.file_offset = (tensor.expert * halves + half) *
                         GgufBytes(info.numbers, engine::ElementCount(tensor.info.shape));
  }
  return infos;
}

void WriteGgufTensors(const WriteContext& context, const GgufFileWriter& writer,
                      std::vector<GgufTensor>& tensors) {
  const ModelSource& source = context.source;
  const std::string file = writer.path().filename().string();
  std::multimap<int64_t, size_t> wanted;  // source index -> indices in tensors
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].source >= 0) {
      wanted.emplace(tensors[i].source, i);
    } else {
      WriteValues(writer, tensors[i]);
    }
  }
  TakeWritten(writer, context.journal, tensors, &wanted);
  JournalSyncer sync(context);
  for (int64_t part = 0; part < source.parts(); ++part) {
    const std::vector<int64_t> in_part = source.TensorsOf(part);
    int64_t bytes = 0;
    for (const int64_t index : in_part) {
      bytes += static_cast<int64_t>(source.tensors()[static_cast<size_t>(index)].view.bytes());
    }
    context.advance(bytes);
    if (std::none_of(in_part.begin(), in_part.end(),
                     [&](int64_t index) { return wanted.contains(index); })) {
      continue;
    }
    source.ReadPart(part, [&](const engine::NamedTensor& read, ModelSource::Bytes data) {
      const auto [begin, end] = wanted.equal_range(source.Find(read.name));
      for (auto found = begin; found != end; ++found) {
        GgufTensor& tensor = tensors[found->second];
        WriteRows(RowReader(tensor, read.view, data.data()), source.name(), writer,
                  context.ops.pool(), tensor);
        sync.Add({file, static_cast<int64_t>(found->second), NoteOf(tensor.error)},
                 {writer.path()});
      }
    });
  }
  sync.Finish();
}

}  // namespace tandem::convert
