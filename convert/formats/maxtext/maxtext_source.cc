// Reads a MaxText checkpoint as Hugging Face tensors. A parameter is a part: it is read once and
// yields the tensors of its layers.

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>

#include "convert/formats/maxtext/maxtext.h"
#include "convert/formats/maxtext/maxtext_map.h"
#include "convert/formats/maxtext/maxtext_numbers.h"
#include "convert/orbax/orbax_checkpoint.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/edit_distance.h"
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

constexpr size_t kMaxTextBytes = size_t{512} << 20;

template <size_t kN>
bool IsOneOf(const std::array<const char*, kN>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Entries of a training state that are not parameters, at any depth.
constexpr std::array kNotParameters = {"opt_state", "optimizer", "optimizer_state",
                                       "nnx_aux",   "rngs",      "rng",
                                       "dropout",   "step",      "batch_stats"};
// Keys that may precede a parameter's name.
constexpr std::array kPrefixes = {"params", "model", "model_params", "base", "state", "items"};
constexpr std::array kRoots = {"decoder", "token_embedder"};
constexpr std::array<std::string_view, 3> kGroups = {"layers", "dense_layers", "moe_layers"};

bool IsNumber(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// Returns "decoder.layers.mlp.wi_0.kernel" for params.params.… and for ….kernel.value; returns an
// empty string if the leaf is not a parameter.
std::string ParameterName(const Leaf& leaf, const std::string& where) {
  std::vector<std::string> keys = leaf.path;
  for (const std::string& key : keys) {
    if (IsOneOf(kNotParameters, key)) return "";
  }
  if (!keys.empty() && keys.back() == "value") keys.pop_back();
  const auto root = std::find_if(keys.begin(), keys.end(),
                                 [](const std::string& key) { return IsOneOf(kRoots, key); });
  const bool is_known = root != keys.end() &&
                        std::all_of(keys.begin(), root,
                                    [](const std::string& key) { return IsOneOf(kPrefixes, key); });
  if (!is_known) {
    throw Error(ErrorCode::kUnsupported,
                where + ": " + Quoted(leaf.name()) +
                    " is not a MaxText parameter: parameters are below decoder and token_embedder, "
                    "in params, model or base");
  }
  std::string name;
  for (auto key = root; key != keys.end(); ++key) {
    // Layers may form a list, whose index is a key of its own.
    const bool is_index = key != root && (key - 1)->ends_with("layers") && IsNumber(*key);
    name += (name.empty() ? "" : is_index ? "_" : ".") + *key;
  }
  return name;
}

bool IsUnscanned(const std::string& name) {
  for (const std::string_view group : kGroups) {
    const std::string layer = "decoder." + std::string(group) + "_";
    if (name.starts_with(layer) && IsNumber(name.substr(layer.size(), 1))) return true;
  }
  return false;
}

std::string NearestNames(const std::vector<MaxTextLeaf>& leaves, const std::string& name) {
  std::vector<std::pair<size_t, std::string>> near;
  near.reserve(leaves.size());
  for (const MaxTextLeaf& leaf : leaves)
    near.emplace_back(EditDistance(leaf.name, name), leaf.name);
  std::sort(near.begin(), near.end());
  std::string names;
  for (size_t i = 0; i < std::min<size_t>(2, near.size()); ++i) {
    names += (i == 0 ? "" : " and ") + Quoted(near[i].second);
  }
  return names;
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

// The model's small files in one directory. A base that is a single file supplies its equivalents.
class Texts {
 public:
  // Looks for config.json in `base`, or beside the item, its step or their root.
  Texts(const fs::path& base, const fs::path& item_dir) {
    if (fs::is_regular_file(base)) {
      file_ = OpenModelFiles(base, std::nullopt);
      dir_ = base;
      return;
    }
    if (!base.empty()) {
      dir_ = base;
    } else {
      fs::path dir = fs::absolute(item_dir).lexically_normal();
      for (int i = 0; i < 3 && dir_.empty(); ++i, dir = dir.parent_path()) {
        if (fs::is_regular_file(dir / "config.json")) dir_ = dir;
      }
    }
    if (!dir_.empty() && fs::is_regular_file(dir_ / "config.json")) return;
    throw Error(
        ErrorCode::kInvalidArgument,
        item_dir.string() +
            ": a MaxText checkpoint has no model config, and no config.json exists " +
            (base.empty() ? "next to it" : "in " + base.string()) +
            ": set base to the Hugging Face model directory whose config and tokenizer apply")
        .WithParam("source.base")
        .WithReason("missing_required_parameter");
  }

  const fs::path& dir() const { return dir_; }
  std::optional<std::string> Read(std::string_view name) const {
    if (file_) return file_->ReadText(name);
    const fs::path file = dir_ / name;
    if (!fs::is_regular_file(file)) return std::nullopt;
    return engine::ReadWholeFile(file, kMaxTextBytes);
  }

 private:
  fs::path dir_;  // or the file
  std::unique_ptr<ModelSource> file_;
};

class MaxTextSource final : public ModelSource {
 public:
  MaxTextSource(const fs::path& path, const fs::path& base, std::optional<DType> dtype,
                const std::string& maxtext_model, UnrecordedType unrecorded)
      : checkpoint_(OrbaxCheckpoint::Open(path)),
        name_(checkpoint_.item_dir().string()),
        texts_(base, checkpoint_.item_dir()),
        base_(base) {
    const fs::path root = checkpoint_.item_dir().parent_path().parent_path();
    const std::string config_name = (texts_.dir() / "config.json").string();
    const Json config = engine::ParseUntrustedJson(*texts_.Read("config.json"), config_name);
    config_ =
        engine::ParseModelConfig(engine::FindFamily(config, config_name), config, config_name);
    if (fs::is_regular_file(root / kMaxTextRecordFile)) {
      record_ = ParseMaxTextRecord(engine::ReadWholeFile(root / kMaxTextRecordFile, kMaxTextBytes),
                                   (root / kMaxTextRecordFile).string());
    }
    if (!maxtext_model.empty()) record_.rotates_pairs = RotatesPairs(maxtext_model);
    if (const fs::path exact = root / "exact" / "items"; OrbaxCheckpoint::Is(exact)) {
      exact_ = OrbaxCheckpoint::Open(exact);
      for (const Leaf& leaf : exact_->leaves()) exact_leaves_[leaf.name()] = &leaf;
    }
    // For our own checkpoints the warning was given when they were written.
    const std::string caveat = MaxTextCaveat(config_);
    if (!caveat.empty() && !fs::exists(root / kMaxTextRecordFile)) {
      LogEvent(spdlog::level::warn, "maxtext.caveat", {{"what", caveat}});
    }
    MatchLeaves();
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
    const Leaf* exact = ExactLeaf(TensorOf(wanted, 0).name);
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

  void MatchLeaves() {
    std::map<std::string, const Leaf*> there;
    bool is_unscanned = false;
    for (const Leaf& leaf : checkpoint_.leaves()) {
      if (!leaf.array) continue;
      const std::string name = ParameterName(leaf, name_);
      if (name.empty()) continue;
      if (name.find("_lora_") != std::string::npos) {
        throw Error(ErrorCode::kUnsupported,
                    name_ + ": " + Quoted(name) +
                        " belongs to an adapter; MaxText adapters are not supported, so export "
                        "merged parameters from MaxText");
      }
      is_unscanned = is_unscanned || IsUnscanned(name);
      if (!there.emplace(name, &leaf).second)
        Broken("the parameter " + Quoted(name) + " occurs twice");
    }
    std::vector<MaxTextLeaf> leaves = MaxTextLeaves(
        config_, {.is_scanned = !is_unscanned, .rotates_pairs = record_.rotates_pairs});
    for (const auto& [name, leaf] : there) {
      const bool is_known =
          std::any_of(leaves.begin(), leaves.end(),
                      [&, &wanted = name](const MaxTextLeaf& one) { return one.name == wanted; });
      if (is_known) continue;
      throw Error(ErrorCode::kUnsupported,
                  name_ + ": parameter " + Quoted(name) + " is unknown for the " + config_.family +
                      " model with " + std::to_string(config_.n_layers) +
                      " layers in config.json; the nearest are " + NearestNames(leaves, name));
    }
    for (MaxTextLeaf& map : leaves) {
      const auto leaf = there.find(map.name);
      if (leaf == there.end()) {
        Broken("parameter " + Quoted(map.name) + " (" + map.tensors.front() + ") is missing");
      }
      CheckLeaf(*leaf->second, &map);
      parts_.push_back({std::move(map), leaf->second, {}});
    }
  }

  void CheckLeaf(const Leaf& leaf, MaxTextLeaf* map) const {
    const std::vector<int64_t>& is = leaf.array->shape;
    if (map->has_vocabulary && is.size() == 2 && is[0] >= 1) map->shape[0] = is[0];
    if (is != map->shape) {
      Broken("parameter " + Quoted(map->name) + " has the shape " + engine::ShapeText(is) +
             ", but config.json requires " + engine::ShapeText(map->shape));
    }
    const std::optional<DType> dtype = leaf.array->dtype;
    if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
      throw Error(ErrorCode::kUnsupported, name_ + ": parameter " + Quoted(map->name) +
                                               " has type " + leaf.array->type_name +
                                               "; supported are float32, bfloat16 and float16");
    }
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

  const Leaf* ExactLeaf(const std::string& name) const {
    const auto found = exact_leaves_.find(name);
    return found == exact_leaves_.end() || !found->second->array ? nullptr : found->second;
  }

  AlignedBuffer ReadExact(const Leaf& leaf, const std::vector<int64_t>& shape,
                          const ParallelFor& parallel_for) const {
    if (leaf.array->shape != shape) {
      Broken("exact: " + Quoted(leaf.name()) + " has the shape " +
             engine::ShapeText(leaf.array->shape) + " instead of " + engine::ShapeText(shape));
    }
    exact_->CheckStored(leaf);
    AlignedBuffer bytes(static_cast<size_t>(leaf.array->bytes()));
    exact_->Read(leaf, bytes.span(), parallel_for);
    return bytes;
  }

  // Reads the corrections of a tensor; `room` holds their steps.
  Corrections CorrectionsOf(const engine::NamedTensor& tensor, const ParallelFor& parallel_for,
                            AlignedBuffer* room) const {
    Corrections corrections;
    const Leaf* leaf = ExactLeaf(tensor.name);
    if (leaf == nullptr) return corrections;
    const auto recorded = record_.dtypes.find(tensor.name);
    if (recorded == record_.dtypes.end()) return corrections;
    corrections.dtype = recorded->second;
    corrections.stored = leaf->array->dtype.value_or(DType::kF32);
    if (corrections.stored != DType::kI8 && corrections.stored != DType::kI32) {
      Broken("exact: " + Quoted(leaf->name()) + " is neither int8 nor int32");
    }
    *room = ReadExact(*leaf, tensor.view.shape, parallel_for);
    corrections.steps = room->span();
    return corrections;
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
                      CorrectionsOf(tensor, OneByOne, &steps), out)) {
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
      if (ExactLeaf(tensor.name) != nullptr) step = n_rows;  // reads corrections once
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
    const Corrections corrections = CorrectionsOf(tensor, OneByOne, &steps);
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
    const Corrections corrections = CorrectionsOf(tensor, parallel_for, &steps);
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
    if (const Leaf* leaf = ExactLeaf(tensor.name + kRowsBeyond)) {
      const AlignedBuffer exact = ReadExact(*leaf, {n_rows, width}, OneByOne);
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
  Texts texts_;
  fs::path base_;
  engine::ModelConfig config_;
  MaxTextRecord record_;
  std::optional<OrbaxCheckpoint> exact_;
  std::map<std::string, const Leaf*> exact_leaves_;
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

MaxTextRecord ParseMaxTextRecord(std::string_view json, const std::string& source) {
  const Json object = engine::ParseUntrustedJson(json, source);
  const auto broken = [&](const std::string& why) {
    return Error(ErrorCode::kDataLoss, source + ": " + why);
  };
  if (!object.is_object()) throw broken("must be a JSON object");
  MaxTextRecord record;
  record.rotates_pairs = engine::JsonBoolOr(object, "rotates_pairs", true, source);
  const auto dtypes = object.find("dtypes");
  if (dtypes == object.end()) return record;
  if (!dtypes->is_object()) throw broken("field 'dtypes' must be an object");
  for (const auto& [name, tensors] : dtypes->items()) {
    const std::optional<DType> dtype = FloatTypeOf(name);
    if (!dtype || !tensors.is_array())
      throw broken("field 'dtypes' must map f32, bf16 or f16 to an array, got " + Quoted(name));
    for (const Json& tensor : tensors) {
      if (!tensor.is_string()) throw broken("field 'dtypes' must list tensor names as strings");
      record.dtypes[tensor.get<std::string>()] = *dtype;
    }
  }
  return record;
}

std::unique_ptr<ModelSource> OpenMaxText(const fs::path& path, const fs::path& base,
                                         std::optional<DType> dtype,
                                         const std::string& maxtext_model,
                                         UnrecordedType unrecorded) {
  return std::make_unique<MaxTextSource>(path, base, dtype, maxtext_model, unrecorded);
}

}  // namespace tandem::convert
