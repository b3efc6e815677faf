#include "convert/formats/gguf/gguf_tensors.h"

#include <algorithm>
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

GgufNumbers NumbersOf(DType dtype) {
  if (dtype == DType::kF16) return GgufNumbers::kF16;
  return dtype == DType::kBF16 ? GgufNumbers::kBF16 : GgufNumbers::kF32;
}

// GGUF readers accept only floats for norms, biases and positions.
GgufNumbers ChooseNumbers(const GgufTensorInfo& info, bool makes_logits, DType source,
                          const std::string& dtype) {
  if (info.shape.size() < 2 || info.name == "position_embd.weight") return GgufNumbers::kF32;
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
    } else {
      Decode(first * row_elements_, count * row_elements_, out->data());
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

// Removes tensors that the journal has from `wanted`.
void TakeWritten(const GgufFileWriter& writer, Journal* journal, std::vector<GgufTensor>& tensors,
                 std::map<int64_t, size_t>* wanted) {
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

std::vector<GgufTensor> PlanGgufTensors(const engine::GgufArchitecture& architecture,
                                        const ModelConfig& config, const ModelSource& source,
                                        const std::string& dtype) {
  std::vector<GgufTensor> tensors;
  for (const GgufRopeTensor& rope : GgufRopeTensors(config)) {
    GgufTensor& tensor = tensors.emplace_back();
    tensor.info.name = rope.name;
    tensor.info.shape = {static_cast<int64_t>(rope.divisors.size())};
    tensor.values = rope.divisors;
  }
  for (const WeightSpec& spec : engine::FindFamilyByName(config.family).list_weights(config)) {
    const auto name = engine::GgufNameOf(architecture, spec.name);
    if (!name) {
      throw Error(ErrorCode::kUnsupported, source.name() + ": tensor " + Quoted(spec.name) +
                                               " has no counterpart in GGUF's architecture " +
                                               Quoted(architecture.name) +
                                               "; convert the model to hf or native");
    }
    GgufTensor tensor;
    tensor.info.name = name->name;
    tensor.weight = spec.name;
    tensor.expert = name->expert;
    tensor.info.shape = spec.source_shape;
    tensor.change = name->change;
    tensor.source = RequireWeight(source, spec);
    if (tensor.change == GgufChange::kQueryPairs) tensor.heads = config.attention.n_heads;
    if (tensor.change == GgufChange::kKeyPairs) tensor.heads = config.attention.n_kv_heads;
    if (tensor.change == GgufChange::kTransposed) {
      std::reverse(tensor.info.shape.begin(), tensor.info.shape.end());
    }
    if (tensor.change == GgufChange::kOneRow) {
      tensor.info.shape.erase(tensor.info.shape.begin());
    }
    const bool makes_logits =
        name->name == (config.tied_embeddings ? "token_embd.weight" : "output.weight");
    tensor.info.numbers =
        ChooseNumbers(tensor.info, makes_logits,
                      source.tensors()[static_cast<size_t>(tensor.source)].view.dtype, dtype);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<GgufTensorInfo> FileTensors(const std::string& source,
                                        std::vector<GgufTensor>& tensors) {
  std::vector<GgufTensorInfo> infos;
  std::map<std::string, size_t> index_of;
  std::vector<int64_t> experts;  // by file tensor
  for (GgufTensor& tensor : tensors) {
    const auto [found, is_new] = index_of.try_emplace(tensor.info.name, infos.size());
    if (is_new) {
      infos.push_back(tensor.info);
      if (tensor.expert >= 0) infos.back().shape.insert(infos.back().shape.begin(), 0);
      experts.push_back(0);
    }
    GgufTensorInfo& info = infos[found->second];
    tensor.file_tensor = found->second;
    if (tensor.expert < 0 && is_new) continue;
    const auto fail = [&](const std::string& what) {
      throw Error(ErrorCode::kDataLoss, source + ": tensor " + Quoted(tensor.weight) + " " + what +
                                            " in " + Quoted(info.name));
    };
    if (tensor.expert != experts[found->second]++) fail("is not the next expert");
    if (tensor.info.numbers != info.numbers) {
      fail("has the type " + std::string(GgufNumbersName(tensor.info.numbers)) +
           ", but the experts before it have " + std::string(GgufNumbersName(info.numbers)));
    }
    if (!std::equal(tensor.info.shape.begin(), tensor.info.shape.end(), info.shape.begin() + 1,
                    info.shape.end())) {
      fail("does not have the shape of the other experts");
    }
    ++info.shape[0];
    tensor.file_offset =
        tensor.expert * GgufBytes(info.numbers, engine::ElementCount(tensor.info.shape));
  }
  return infos;
}

void WriteGgufTensors(const WriteContext& context, const GgufFileWriter& writer,
                      std::vector<GgufTensor>& tensors) {
  const ModelSource& source = context.source;
  const std::string file = writer.path().filename().string();
  std::map<int64_t, size_t> wanted;  // source index -> index in tensors
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].source >= 0) {
      wanted[tensors[i].source] = i;
    } else {
      writer.Write(tensors[i].file_tensor, 0, std::as_bytes(std::span(tensors[i].values)));
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
      const auto found = wanted.find(source.Find(read.name));
      if (found == wanted.end()) return;
      GgufTensor& tensor = tensors[found->second];
      WriteRows(RowReader(tensor, read.view, data.data()), source.name(), writer,
                context.ops.pool(), tensor);
      sync.Add({file, static_cast<int64_t>(found->second), NoteOf(tensor.error)}, {writer.path()});
    });
  }
  sync.Finish();
}

}  // namespace tandem::convert
