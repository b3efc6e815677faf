#include "engine/formats/gguf/gguf_joined.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::engine {
namespace {

// The tensor as a matrix of its innermost axis.
StoredTensor AsMatrix(const GgufFile::Tensor& tensor) {
  return {.view = {.data = tensor.data.data(),
                   .dtype = tensor.dtype,
                   .shape = {tensor.shape[0] * tensor.shape[1], tensor.shape[2]}},
          .encoding = tensor.encoding};
}

// A head's rows are those of its keys, then those of its values. The file has the keys' transpose.
class LatentRows final : public EncodedRows {
 public:
  struct Sizes {
    int64_t key = 0, value = 0, latent = 0;
  };
  LatentRows(StoredTensor keys, StoredTensor values, Sizes sizes)
      : keys_(std::move(keys)), values_(std::move(values)), sizes_(sizes) {}

  void Read(int64_t first, int64_t step, int64_t count, float* out) const override {
    const auto& [key, value, latent] = sizes_;
    std::vector<float> head_keys;  // [latent, key] of the head in `decoded`
    int64_t decoded = -1;
    for (int64_t i = 0; i < count; ++i, out += latent) {
      const int64_t row = first + i * step;
      const int64_t head = row / (key + value), in_head = row % (key + value);
      if (in_head >= key) {
        ReadRows(values_, head * value + in_head - key, 1, out);
        continue;
      }
      if (decoded != head) {
        head_keys.resize(static_cast<size_t>(latent * key));
        ReadRows(keys_, head * latent, latent, head_keys.data());
        decoded = head;
      }
      for (int64_t r = 0; r < latent; ++r) {
        out[r] = head_keys[static_cast<size_t>(r * key + in_head)];
      }
    }
  }

 private:
  StoredTensor keys_, values_;
  Sizes sizes_;
};

// Numbers that were computed when the file was opened.
class ComputedRows final : public EncodedRows {
 public:
  explicit ComputedRows(std::vector<float> values) : values_(std::move(values)) {}
  void Read(int64_t first, int64_t step, int64_t count, float* out) const override {
    for (int64_t i = 0; i < count; ++i) out[i] = values_[static_cast<size_t>(first + i * step)];
  }

 private:
  std::vector<float> values_;
};

// The number whose NegativeExp is `stored`.
float LogOfNegative(float stored) {
  const auto exact = static_cast<float>(std::log(-static_cast<double>(stored)));
  const float rounded = Bf16ToFloat(FloatToBf16(exact));
  return NegativeExp(rounded) == stored ? rounded : exact;
}

// Rows of several tensors in another order.
class OrderedRows final : public EncodedRows {
 public:
  struct Place {
    size_t piece = 0;
    int64_t row = -1;  // -1: no tensor has it
  };
  OrderedRows(std::vector<GgufPiece> pieces, std::vector<Place> places,
              std::vector<int64_t> columns)
      : pieces_(std::move(pieces)), places_(std::move(places)), columns_(std::move(columns)) {
    row_elements_ = pieces_.front().stored.row_elements();
  }
  void Read(int64_t first, int64_t step, int64_t count, float* out) const override {
    std::vector<float> in_file(columns_.size());
    for (int64_t i = 0; i < count; ++i, out += row_elements_) {
      const int64_t row = first + i * step;
      const Place place = places_.empty() ? Place{0, row} : places_[static_cast<size_t>(row)];
      const StoredTensor& stored = pieces_[place.piece].stored;
      if (columns_.empty()) {
        ReadRows(stored, place.row, 1, out);
        continue;
      }
      ReadRows(stored, place.row, 1, in_file.data());
      for (size_t column = 0; column < columns_.size(); ++column) {
        out[columns_[column]] = in_file[column];
      }
    }
  }

 private:
  std::vector<GgufPiece> pieces_;
  std::vector<Place> places_;     // by the family's row; empty: those of the one piece
  std::vector<int64_t> columns_;  // the family's, by the file's; empty: the same
  int64_t row_elements_ = 0;
};

[[noreturn]] void ThrowSize(const GgufFile& file, const GgufPiece& piece, int64_t wanted,
                            int64_t is, const char* of) {
  throw Error(ErrorCode::kDataLoss, file.name() + ": tensor " + Quoted(piece.tensor) + " has " +
                                        std::to_string(is) + " " + of + ", but the keys require " +
                                        std::to_string(wanted));
}

// A tensor without numbers may claim 2^60 rows, so this comes before anything is allocated.
void CheckSize(const GgufFile& file, const GgufPiece& piece, const ModelConfig& config) {
  const int64_t n_rows = piece.stored.rows(), n_columns = piece.stored.row_elements();
  if (piece.rows != nullptr && piece.rows->count(config) != n_rows) {
    ThrowSize(file, piece, piece.rows->count(config), n_rows, "rows");
  }
  if (piece.columns != nullptr && piece.columns->count(config) != n_columns) {
    ThrowSize(file, piece, piece.columns->count(config), n_columns, "columns");
  }
}

// Sets the places of the piece's rows; false: some are beyond the rows of all pieces together.
bool PlaceRows(const GgufPiece& piece, size_t index, const ModelConfig& config,
               std::vector<OrderedRows::Place>* places) {
  const int64_t n = piece.stored.rows();
  for (int64_t row = 0; row < n; ++row) {
    const int64_t at = piece.rows->of(config, row);
    if (at < 0 || at >= static_cast<int64_t>(places->size())) return false;
    (*places)[static_cast<size_t>(at)] = {index, row};
  }
  return true;
}

}  // namespace

float NegativeExp(float x) { return static_cast<float>(-std::exp(static_cast<double>(x))); }

StoredTensor UndoNegativeExp(const GgufFile& file, const GgufFile::Tensor& tensor) {
  if (tensor.encoding != Encoding::kPlain) {
    throw Error(ErrorCode::kUnsupported,
                file.name() + ": tensor " + Quoted(tensor.name) + " is of type " +
                    std::string(EncodingName(tensor.encoding)) + "; it must be floating point");
  }
  const int64_t n = ElementCount(tensor.shape);
  std::vector<float> values =
      DecodeTensor({.view = {tensor.data.data(), tensor.dtype, {n}}, .encoding = tensor.encoding});
  for (float& value : values) {
    if (!(value < 0) || !std::isfinite(value)) {
      throw Error(ErrorCode::kDataLoss, file.name() + ": tensor " + Quoted(tensor.name) +
                                            " has a number that is not below 0, so it is not "
                                            "the decay of a state");
    }
    value = LogOfNegative(value);
  }
  StoredTensor stored{.view = {tensor.data.data(), DType::kF32, {n}}};
  stored.encoded = std::make_shared<const ComputedRows>(std::move(values));
  stored.encoded_bytes = {tensor.data};
  stored.part = "log of the negative";
  return stored;
}

StoredTensor JoinPieces(const GgufFile& file, const std::string& weight,
                        std::vector<GgufPiece> pieces, const ModelConfig& config) {
  int64_t n_rows = 0;
  bool is_plain = true;
  DType dtype = pieces.front().stored.view.dtype;
  std::string part;
  std::vector<std::span<const std::byte>> bytes;
  for (const GgufPiece& piece : pieces) {
    const StoredTensor& stored = piece.stored;
    CheckSize(file, piece, config);
    if (stored.row_elements() != pieces.front().stored.row_elements()) {
      ThrowSize(file, piece, pieces.front().stored.row_elements(), stored.row_elements(),
                "columns");
    }
    n_rows += stored.rows();
    is_plain = is_plain && stored.encoding == Encoding::kPlain;
    if (stored.view.dtype != dtype) dtype = DType::kF32;
    part += (part.empty() ? "" : " ") + std::string(piece.tensor) + " " + DecodingOf(stored);
    bytes.push_back(stored.bytes());
  }
  // Without an order of rows there is one piece, whose rows are the weight's.
  const bool is_ordered = pieces.front().rows != nullptr;
  std::vector<OrderedRows::Place> places(is_ordered ? static_cast<size_t>(n_rows) : 0);
  bool has_all = is_ordered || pieces.size() == 1;
  for (size_t i = 0; i < pieces.size() && is_ordered; ++i) {
    has_all = pieces[i].rows != nullptr && PlaceRows(pieces[i], i, config, &places) && has_all;
  }
  std::vector<int64_t> columns;
  if (const GgufOrder* order = pieces.front().columns; order != nullptr) {
    const int64_t n = pieces.front().stored.row_elements();
    for (int64_t column = 0; column < n; ++column) columns.push_back(order->of(config, column));
  }
  // Two pieces with the same rows leave others without a place.
  has_all = has_all && std::none_of(places.begin(), places.end(),
                                    [](const auto& place) { return place.row < 0; });
  if (!has_all) {
    throw Error(ErrorCode::kDataLoss, file.name() + ": tensor " + Quoted(pieces.front().tensor) +
                                          " is a part of " + Quoted(weight) +
                                          ", whose other parts are missing");
  }
  StoredTensor joined{.view = pieces.front().stored.view};
  joined.view.dtype = is_plain ? dtype : DType::kF32;
  joined.view.shape.front() = n_rows;
  joined.encoding = is_plain ? Encoding::kPlain : Encoding::kJoined;
  joined.encoded =
      std::make_shared<const OrderedRows>(std::move(pieces), std::move(places), std::move(columns));
  joined.encoded_bytes = std::move(bytes);
  joined.part = std::move(part);
  return joined;
}

StoredTensor JoinLatentParts(const GgufFile& file, const GgufFile::Tensor& keys,
                             const GgufFile::Tensor& values) {
  const auto is_empty = [](const GgufFile::Tensor& tensor) { return tensor.data.empty(); };
  const bool fits = keys.shape.size() == 3 && values.shape.size() == 3 && !is_empty(keys) &&
                    !is_empty(values) && keys.shape[0] == values.shape[0] &&
                    keys.shape[1] == values.shape[2];
  if (!fits) {
    throw Error(ErrorCode::kDataLoss,
                file.name() + ": tensors " + Quoted(keys.name) + " " + ShapeText(keys.shape) +
                    " and " + Quoted(values.name) + " " + ShapeText(values.shape) +
                    " do not fit each other; expected [heads, latent, key] and [heads, value, "
                    "latent]");
  }
  const LatentRows::Sizes sizes{
      .key = keys.shape[2], .value = values.shape[1], .latent = keys.shape[1]};
  const bool is_plain = keys.encoding == Encoding::kPlain && values.encoding == Encoding::kPlain;
  const bool is_one_type = is_plain && keys.dtype == values.dtype;
  StoredTensor joined{
      .view = {.data = keys.data.data(),
               .dtype = is_one_type ? keys.dtype : DType::kF32,
               .shape = {keys.shape[0] * (sizes.key + sizes.value), sizes.latent}},
      .encoding = is_plain ? Encoding::kPlain : Encoding::kJoined,
      .encoded = std::make_shared<const LatentRows>(AsMatrix(keys), AsMatrix(values), sizes),
      .encoded_bytes = {keys.data, values.data},
      .part = "latent " + std::to_string(sizes.key) + " " + std::to_string(sizes.value) + " " +
              std::string(EncodingName(keys.encoding)) + " " +
              std::string(EncodingName(values.encoding)),
  };
  return joined;
}

}  // namespace tandem::engine
