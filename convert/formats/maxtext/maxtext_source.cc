// Reads a MaxText checkpoint as Hugging Face tensors. A parameter is a part: it is read once and
// yields the tensors of its layers.

#include <algorithm>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "convert/formats/maxtext/maxtext.h"
#include "convert/formats/maxtext/maxtext_exact.h"
#include "convert/formats/maxtext/maxtext_map.h"
#include "convert/formats/maxtext/maxtext_numbers.h"
#include "convert/formats/maxtext/maxtext_parameters.h"
#include "convert/formats/maxtext/maxtext_texts.h"
#include "convert/orbax/orbax_checkpoint.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/model/families/family.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using Json = nlohmann::ordered_json;
using Leaf = OrbaxCheckpoint::Leaf;

// The directory of the steps.
fs::path RootOf(const OrbaxCheckpoint& checkpoint) {
  return checkpoint.item_dir().parent_path().parent_path();
}

std::optional<DType> DTypeOfConfig(const Json& config) {
  const Json* at = &config;
  if (const auto text = config.find("text_config"); text != config.end() && text->is_object()) {
    if (!config.contains("torch_dtype") && !config.contains("dtype")) at = &*text;
  }
  for (const char* field : {"dtype", "torch_dtype"}) {
    const auto found = at->find(field);
    if (found == at->end() || !found->is_string()) continue;
    if (*found == "float32") return DType::kF32;
    if (*found == "bfloat16") return DType::kBF16;
    if (*found == "float16") return DType::kF16;
  }
  return std::nullopt;
}

class MaxTextSource final : public ModelSource {
 public:
  MaxTextSource(const fs::path& path, const fs::path& base, std::optional<DType> dtype,
                const std::string& maxtext_model, UnrecordedType unrecorded)
      : checkpoint_(OrbaxCheckpoint::Open(path)),
        name_(checkpoint_.item_dir().string()),
        texts_(base, checkpoint_.item_dir()),
        base_(base),
        exact_(RootOf(checkpoint_), name_) {
    const fs::path root = RootOf(checkpoint_);
    const std::string config_name = (texts_.dir() / "config.json").string();
    const Json config = engine::ParseUntrustedJson(*texts_.Read("config.json"), config_name);
    config_ =
        engine::ParseModelConfig(engine::FindFamily(config, config_name), config, config_name);
    if (fs::is_regular_file(root / kMaxTextRecordFile)) {
      record_ = ParseMaxTextRecord(
          engine::ReadWholeFile(root / kMaxTextRecordFile, MaxTextTexts::kMaxBytes),
          (root / kMaxTextRecordFile).string());
    }
    if (!maxtext_model.empty()) record_.rotates_pairs = RotatesPairs(maxtext_model);
    // For our own checkpoints the warning was given when they were written.
    const std::string caveat = MaxTextCaveat(config_);
    if (!caveat.empty() && !fs::exists(root / kMaxTextRecordFile)) {
      LogEvent(spdlog::level::warn, "maxtext.caveat", {{"what", caveat}});
    }
    for (MaxTextParameter& one :
         MatchMaxTextParameters(checkpoint_, config_, record_.rotates_pairs, name_)) {
      parts_.push_back({std::move(one.map), one.leaf, {}});
    }
    ListTensors(dtype, unrecorded == UnrecordedType::kOfConfig ? DTypeOfConfig(config)
                                                               : std::optional<DType>());
  }

  const std::string& name() const override { return name_; }
  const std::vector<engine::NamedTensor>& tensors() const override { return tensors_; }
  std::optional<std::string> ReadText(std::string_view file_name) const override {
    return texts_.Read(file_name);
  }

  int64_t parts() const override { return static_cast<int64_t>(parts_.size()); }
  std::vector<int64_t> TensorsOf(int64_t part) const override {
    return parts_.at(static_cast<size_t>(part)).tensors;
  }
  void ReadPart(int64_t part, const Take& take) const override {
    const Part& wanted = parts_.at(static_cast<size_t>(part));
    std::unique_ptr<Workspace> space = Borrow();
    // Layers may differ in dtype.
    const auto room = [&](const engine::NamedTensor& tensor) {
      return Room(tensor.view.bytes(), &space->tensor);
    };
    if (IsInRuns(wanted)) {
      const std::span<std::byte> out = room(TensorOf(wanted, 0));
      DecodeTable(wanted, out);
      take(TensorOf(wanted, 0), out);
    } else {
      const Bytes bytes = LoadLeaf(wanted, OneByOne, &space->leaf);
      for (int64_t index = 0; index < wanted.map.n_tensors(); ++index) {
        const engine::NamedTensor& tensor = TensorOf(wanted, index);
        const std::span<std::byte> out = room(tensor);
        Decode(wanted, index, bytes, out);
        take(tensor, out);
      }
    }
    GiveBack(std::move(space));
  }
  void ReadPieces(int64_t part, const ParallelFor& parallel_for,
                  const TakePiece& take) const override {
    const Part& wanted = parts_.at(static_cast<size_t>(part));
    if (IsInRuns(wanted)) return TableInPieces(wanted, parallel_for, take);
    std::unique_ptr<Workspace> space = Borrow();
    const Bytes bytes = LoadLeaf(wanted, parallel_for, &space->leaf);
    const std::vector<Piece> pieces = PiecesOf(wanted);
    RunAll(parallel_for, static_cast<int64_t>(pieces.size()),
           [&](int64_t i) { DecodePiece(wanted, pieces[static_cast<size_t>(i)], bytes, take); });
    if (wanted.map.IsTable()) TakeRowsBeyond(wanted, take);
    GiveBack(std::move(space));
  }
  // A table read in runs is never in memory as a whole, but its corrections are.
  int64_t PartMemory(int64_t part) const override {
    const Part& wanted = parts_.at(static_cast<size_t>(part));
    if (!IsInRuns(wanted)) return wanted.leaf->array->bytes() + int64_t{kPieceBytes};
    const Leaf* exact = exact_.Find(TensorOf(wanted, 0).name);
    return int64_t{kPieceBytes} + (exact == nullptr ? 0 : exact->array->bytes());
  }
  // Reading the layers of one parameter in sequence reads the parameter once.
  Bytes Read(int64_t tensor, std::vector<std::byte>* buffer) const override {
    const auto& [part, index] = places_.at(static_cast<size_t>(tensor));
    const Part& wanted = parts_[static_cast<size_t>(part)];
    buffer->resize(TensorOf(wanted, index).view.bytes());
    if (IsInRuns(wanted)) {
      DecodeTable(wanted, *buffer);
      return *buffer;
    }
    std::unique_lock<std::mutex> lock;
    Decode(wanted, index, Remembered(part, &lock), *buffer);
    return *buffer;
  }

 private:
  struct Part {
    MaxTextLeaf map;
    const Leaf* leaf = nullptr;
    std::vector<int64_t> tensors;  // as map.tensors
  };

  [[noreturn]] void Broken(const std::string& why) const {
    throw Error(ErrorCode::kDataLoss, name_ + ": " + why);
  }

  const engine::NamedTensor& TensorOf(const Part& part, int64_t index) const {
    return tensors_[static_cast<size_t>(part.tensors[static_cast<size_t>(index)])];
  }

  void ListTensors(std::optional<DType> dtype, std::optional<DType> of_config) {
    struct Entry {
      engine::NamedTensor tensor;
      std::pair<int64_t, int64_t> place;
    };
    std::vector<Entry> entries;
    for (size_t part = 0; part < parts_.size(); ++part) {
      const MaxTextLeaf& map = parts_[part].map;
      for (size_t index = 0; index < map.tensors.size(); ++index) {
        engine::NamedTensor tensor{map.tensors[index], {}};
        tensor.view.shape = map.tensor_shape;
        const auto recorded = record_.dtypes.find(tensor.name);
        tensor.view.dtype = dtype                              ? *dtype
                            : recorded != record_.dtypes.end() ? recorded->second
                            : of_config                        ? *of_config
                                                               : *parts_[part].leaf->array->dtype;
        entries.push_back({std::move(tensor), {part, index}});
      }
      parts_[part].tensors.resize(map.tensors.size());
    }
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.tensor.name < b.tensor.name; });
    for (Entry& entry : entries) {
      const auto& [part, index] = entry.place;
      parts_[static_cast<size_t>(part)].tensors[static_cast<size_t>(index)] =
          static_cast<int64_t>(tensors_.size());
      tensors_.push_back(std::move(entry.tensor));
      places_.push_back(entry.place);
    }
  }

  // Buffers for reading a part. Small ones are reused, because fresh memory costs as much as the
  // work done in it.
  struct Workspace {
    AlignedBuffer leaf;
    AlignedBuffer tensor;
  };
  static constexpr int64_t kMostKeptBytes = int64_t{64} << 20;

  std::unique_ptr<Workspace> Borrow() const {
    const std::lock_guard lock(mutex_);
    if (spaces_.empty()) return std::make_unique<Workspace>();
    std::unique_ptr<Workspace> space = std::move(spaces_.back());
    spaces_.pop_back();
    return space;
  }
  void GiveBack(std::unique_ptr<Workspace> space) const {
    if (std::max(space->leaf.size(), space->tensor.size()) > size_t{kMostKeptBytes}) return;
    const std::lock_guard lock(mutex_);
    spaces_.push_back(std::move(space));
  }

  Bytes LoadLeaf(const Part& part, const ParallelFor& parallel_for, AlignedBuffer* buffer) const {
    checkpoint_.CheckStored(*part.leaf);
    const std::span<std::byte> bytes = Room(static_cast<size_t>(part.leaf->array->bytes()), buffer);
    checkpoint_.Read(*part.leaf, bytes, parallel_for);
    return bytes;
  }

  static std::span<std::byte> Room(size_t n, AlignedBuffer* buffer) {
    if (buffer->size() < n) {
      *buffer = {};
      *buffer = AlignedBuffer(n);
    }
    return buffer->span().first(n);
  }

  Bytes Remembered(int64_t part, std::unique_lock<std::mutex>* lock) const {
    *lock = std::unique_lock(remembered_mutex_);
    if (remembered_part_ != part) {
      remembered_part_ = -1;
      remembered_ = LoadLeaf(parts_[static_cast<size_t>(part)], OneByOne, &remembered_buffer_);
      remembered_part_ = part;
    }
    return remembered_;
  }

  // Number of the first tensor's rows that the parameter has; TakeRowsBeyond supplies the rest.
  static int64_t RowsThere(const Part& part) {
    const int64_t rows = part.map.rows();
    return part.map.has_vocabulary ? std::min(rows, part.map.tensor_shape[0]) : rows;
  }

  void Decode(const Part& part, int64_t index, Bytes bytes, std::span<std::byte> out) const {
    const RowRange rows{0, part.map.IsTable() ? RowsThere(part) : part.map.columns()};
    DecodeRows(part, index, rows, bytes, out);
    if (part.map.IsTable()) AppendRows(part, out);
  }

  void DecodeRows(const Part& part, int64_t index, RowRange rows, Bytes bytes,
                  std::span<std::byte> out) const {
    const engine::NamedTensor& tensor = TensorOf(part, index);
    AlignedBuffer steps;
    if (!LeafToTensor(part.map, index, rows, bytes, *part.leaf->array->dtype, tensor.view.dtype,
                      exact_.CorrectionsOf(tensor, record_, OneByOne, &steps), out)) {
      RefuseValues(part, tensor);
    }
  }

  // Consecutive rows of one tensor; of a table only rows that the parameter has.
  struct Piece {
    int64_t index = 0;
    RowRange rows;
  };
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  // Bytes of one row in DecodeRows.
  static size_t RowBytes(const Part& part, const engine::NamedTensor& tensor) {
    const int64_t elements = part.map.IsTable() ? part.map.columns() : part.map.rows();
    return static_cast<size_t>(elements) * engine::DTypeBytes(tensor.view.dtype);
  }

  std::vector<Piece> PiecesOf(const Part& part) const {
    const int64_t n_rows = part.map.IsTable() ? RowsThere(part) : part.map.columns();
    const int64_t head = std::max<int64_t>(1, part.map.rotated_head_dim);
    std::vector<Piece> pieces;
    for (int64_t index = 0; index < part.map.n_tensors(); ++index) {
      const engine::NamedTensor& tensor = TensorOf(part, index);
      const auto fitting = static_cast<int64_t>(kPieceBytes / RowBytes(part, tensor));
      int64_t step = std::max<int64_t>(1, fitting / head) * head;
      if (exact_.Find(tensor.name) != nullptr) step = n_rows;  // reads corrections once
      for (int64_t row = 0; row < n_rows; row += step) {
        pieces.push_back({index, {row, std::min(row + step, n_rows)}});
      }
    }
    return pieces;
  }

  void DecodePiece(const Part& part, const Piece& piece, Bytes bytes, const TakePiece& take) const {
    const engine::NamedTensor& tensor = TensorOf(part, piece.index);
    const size_t row_bytes = RowBytes(part, tensor);
    std::unique_ptr<Workspace> space = Borrow();
    const std::span<std::byte> out =
        Room(static_cast<size_t>(piece.rows.last - piece.rows.first) * row_bytes, &space->tensor);
    DecodeRows(part, piece.index, piece.rows, bytes, out);
    take(tensor, piece.rows.first * static_cast<int64_t>(row_bytes), out);
    GiveBack(std::move(space));
  }

  // Whether a table's chunks are contiguous runs; such a table is decoded run by run.
  static bool IsInRuns(const Part& part) {
    return part.map.IsTable() && HasRuns(*part.leaf->array);
  }

  // Calls use(first, run) for runs of the tensor's numbers; `first` is the index of a run's first
  // number.
  template <class Use>
  void TableRuns(const Part& part, const ParallelFor& parallel_for, const Use& use) const {
    const auto element_bytes = static_cast<int64_t>(engine::DTypeBytes(*part.leaf->array->dtype));
    const int64_t last = RowsThere(part) * part.map.columns();
    const auto within = [&](int64_t offset, Bytes run) {
      const int64_t first = offset / element_bytes;
      const int64_t n = std::min(static_cast<int64_t>(run.size()) / element_bytes, last - first);
      if (n > 0) use(first, run.first(static_cast<size_t>(n * element_bytes)));
    };
    checkpoint_.ReadRuns(*part.leaf, within, parallel_for);
  }

  void DecodeRun(const Part& part, int64_t first, Bytes run, const Corrections& corrections,
                 std::span<std::byte> out) const {
    const engine::NamedTensor& tensor = TensorOf(part, 0);
    if (!RunToTensor(part.map, first, run, *part.leaf->array->dtype, tensor.view.dtype, corrections,
                     out)) {
      RefuseValues(part, tensor);
    }
  }

  void DecodeTable(const Part& part, std::span<std::byte> out) const {
    const engine::NamedTensor& tensor = TensorOf(part, 0);
    AlignedBuffer steps;
    const Corrections corrections = exact_.CorrectionsOf(tensor, record_, OneByOne, &steps);
    TableRuns(part, OneByOne, [&](int64_t first, Bytes run) {
      DecodeRun(part, first, run, corrections,
                out.subspan(static_cast<size_t>(first) * engine::DTypeBytes(tensor.view.dtype)));
    });
    AppendRows(part, out);
  }

  void TableInPieces(const Part& part, const ParallelFor& parallel_for,
                     const TakePiece& take) const {
    const engine::NamedTensor& tensor = TensorOf(part, 0);
    const DType leaf_dtype = *part.leaf->array->dtype;
    const size_t from_bytes = engine::DTypeBytes(leaf_dtype);
    const size_t to_bytes = engine::DTypeBytes(tensor.view.dtype);
    AlignedBuffer steps;
    const Corrections corrections = exact_.CorrectionsOf(tensor, record_, parallel_for, &steps);
    TableRuns(part, parallel_for, [&](int64_t first, Bytes run) {
      const int64_t offset = first * static_cast<int64_t>(to_bytes);
      if (IsUnchanged(part.map, leaf_dtype, tensor.view.dtype)) return take(tensor, offset, run);
      std::unique_ptr<Workspace> space = Borrow();
      const std::span<std::byte> out = Room(run.size() / from_bytes * to_bytes, &space->tensor);
      DecodeRun(part, first, run, corrections, out);
      take(tensor, offset, out);
      GiveBack(std::move(space));
    });
    TakeRowsBeyond(part, take);
  }

  [[noreturn]] void RefuseValues(const Part& part, const engine::NamedTensor& tensor) const {
    Broken("parameter " + Quoted(part.map.name) + " has values outside the range of " +
           std::string(DTypeName(tensor.view.dtype)) + "; choose another dtype");
  }

  int64_t RowsBeyond(const Part& part) const {
    return part.map.has_vocabulary ? part.map.tensor_shape[0] - RowsThere(part) : 0;
  }
  size_t BytesBeyond(const Part& part) const {
    return static_cast<size_t>(RowsBeyond(part)) * RowBytes(part, TensorOf(part, 0));
  }

  void TakeRowsBeyond(const Part& part, const TakePiece& take) const {
    if (RowsBeyond(part) == 0) return;
    AlignedBuffer room(BytesBeyond(part));
    AppendRows(part, room.span());
    const engine::NamedTensor& tensor = TensorOf(part, 0);
    take(tensor, static_cast<int64_t>(tensor.view.bytes() - room.size()), room.span());
  }

  // Appends the vocabulary rows that MaxText lacks to `out`: from `exact/` if present, else from
  // the base.
  void AppendRows(const Part& part, std::span<std::byte> out) const {
    if (RowsBeyond(part) == 0) return;
    const engine::NamedTensor& tensor = TensorOf(part, 0);
    const int64_t first = RowsThere(part);
    const int64_t width = tensor.view.shape[1];
    const int64_t n_rows = tensor.view.shape[0] - first;
    std::vector<std::byte> stored;
    DType stored_dtype = DType::kF32;
    if (const Leaf* leaf = exact_.Find(tensor.name + kRowsBeyond)) {
      const AlignedBuffer exact = exact_.Read(*leaf, {n_rows, width}, OneByOne);
      stored.assign(exact.data(), exact.data() + exact.size());
      stored_dtype = leaf->array->dtype.value_or(DType::kF32);
    } else if (!base_.empty()) {
      const auto base = OpenModelFiles(base_, std::nullopt);
      const int64_t at = base->Find(tensor.name);
      if (at < 0 || base->tensors()[static_cast<size_t>(at)].view.shape != tensor.view.shape) {
        Broken("the base has no tensor " + Quoted(tensor.name) + " of shape " +
               engine::ShapeText(tensor.view.shape));
      }
      const engine::ConstTensorView& view = base->tensors()[static_cast<size_t>(at)].view;
      std::vector<std::byte> buffer;
      const Bytes all = base->Read(at, &buffer);
      const Bytes last =
          all.last(static_cast<size_t>(n_rows * width) * engine::DTypeBytes(view.dtype));
      stored.assign(last.begin(), last.end());
      stored_dtype = view.dtype;
    } else {
      throw Error(ErrorCode::kInvalidArgument,
                  name_ + ": the checkpoint has only " + std::to_string(first) + " of the " +
                      std::to_string(tensor.view.shape[0]) +
                      " rows of the vocabulary: set base to the model directory with all rows")
          .WithParam("source.base")
          .WithReason("missing_required_parameter");
    }
    if (stored_dtype != DType::kF32 && stored_dtype != DType::kBF16 &&
        stored_dtype != DType::kF16) {
      Broken(Quoted(tensor.name) + ": the rows that the checkpoint lacks must be f32, bf16 or f16");
    }
    // Converts dtypes only: a table of these rows without a scale.
    MaxTextLeaf rows;
    rows.tensors = {tensor.name};
    rows.shape = rows.tensor_shape = {n_rows, width};
    rows.has_vocabulary = true;
    LeafToTensor(rows, 0, {0, n_rows}, stored, stored_dtype, tensor.view.dtype, {},
                 out.last(BytesBeyond(part)));
  }

  OrbaxCheckpoint checkpoint_;
  std::string name_;
  MaxTextTexts texts_;
  fs::path base_;
  engine::ModelConfig config_;
  MaxTextRecord record_;
  MaxTextExact exact_;
  std::vector<Part> parts_;
  std::vector<engine::NamedTensor> tensors_;
  std::vector<std::pair<int64_t, int64_t>> places_;  // tensor -> (part, index in it)

  mutable std::mutex mutex_;  // guards spaces_
  mutable std::vector<std::unique_ptr<Workspace>> spaces_;
  mutable std::mutex remembered_mutex_;  // guards the members below
  mutable AlignedBuffer remembered_buffer_;
  mutable Bytes remembered_;
  mutable int64_t remembered_part_ = -1;
};

}  // namespace

std::unique_ptr<ModelSource> OpenMaxText(const fs::path& path, const fs::path& base,
                                         std::optional<DType> dtype,
                                         const std::string& maxtext_model,
                                         UnrecordedType unrecorded) {
  return std::make_unique<MaxTextSource>(path, base, dtype, maxtext_model, unrecorded);
}

}  // namespace tandem::convert
