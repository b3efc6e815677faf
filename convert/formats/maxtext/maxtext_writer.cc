#include "convert/formats/maxtext/maxtext_writer.h"

// Writes a model as a MaxText checkpoint, `<target>/0/items`, parameter by parameter.

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "convert/formats/maxtext/maxtext.h"
#include "convert/formats/maxtext/maxtext_journal.h"
#include "convert/formats/maxtext/maxtext_map.h"
#include "convert/formats/maxtext/maxtext_tensors.h"
#include "convert/orbax/orbax_writer.h"
#include "convert/tensors/model_texts.h"
#include "convert/tensors/source_config.h"
#include "convert/work/journal_syncer.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/model/families/family.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using Json = nlohmann::ordered_json;

constexpr const char* kJournaledAs = "items";

OrbaxItemWriter::Path Split(const std::string& name) {
  OrbaxItemWriter::Path path = {"params", "params"};
  for (size_t from = 0; from <= name.size();) {
    const size_t dot = std::min(name.find('.', from), name.size());
    path.push_back(name.substr(from, dot - from));
    from = dot + 1;
  }
  return path;
}

class MaxTextWriter {
 public:
  MaxTextWriter(const ConvertSpec& spec, const WriteContext& context,
                const engine::ModelConfig& config, const MaxTextStamps& stamps)
      : spec_(spec),
        context_(context),
        source_(context.source),
        tensors_(source_, config, context.ops.pool()),
        stamps_(stamps),
        items_(context.target / "0" / "items", Storage(), context.ops.pool()) {}

  // Restores the leaves that a killed conversion had written and returns their number. Returns
  // nullopt if its files do not match the journal; then the conversion starts over.
  std::optional<size_t> Restore(const std::vector<MaxTextLeaf>& leaves) {
    size_t n = 0;
    for (; n < leaves.size(); ++n) {
      const std::string* note = context_.journal->Find(kJournaledAs, EntryOf(n));
      if (note == nullptr) break;
      const auto written = ParseLeaf(*note);
      if (!written || !Restore(leaves[n], *written)) return std::nullopt;
      Advance(leaves[n]);
    }
    context_.journal->Drop(kJournaledAs, EntryOf(n));
    engine::RemoveStaleTemporaries(context_.target / "0");
    items_.RemoveOthers();
    if (exact_) {
      exact_->RemoveOthers();
    } else {
      fs::remove_all(ExactDir());
    }
    return n;
  }

  void Write(std::span<const MaxTextLeaf> leaves, size_t from) {
    JournalSyncer sync(context_);
    for (size_t i = from; i < leaves.size(); ++i) {
      const WrittenLeaf written = Write(leaves[i]);
      std::vector<fs::path> changed = items_.TakeChanged();
      changed.insert(changed.end(), {context_.target, context_.target / "0"});
      if (exact_) {
        std::ranges::move(exact_->TakeChanged(), std::back_inserter(changed));
        changed.push_back(ExactDir());
      }
      sync.Add({kJournaledAs, EntryOf(i), NoteOf(written)}, changed);
    }
    sync.Finish();
  }
  void Finish(bool is_scanned, bool rotates_pairs) {
    if (!kept_f32_.empty()) {
      char text[256];
      std::snprintf(text, sizeof text,
                    "%lld parameter%s written in f32: bf16 would have changed %lld of the "
                    "numbers, by up to %.3g (--all-bf16 writes them in bf16)",
                    static_cast<long long>(kept_f32_.size()),
                    kept_f32_.size() == 1 ? " is" : "s are",
                    static_cast<long long>(bf16_loss_.changed), bf16_loss_.max_abs);
      context_.warn(text);
    }
    context_.report(Json{{"kept_f32", kept_f32_.size()},
                         {"changed_by_bf16", bf16_loss_.changed},
                         {"max_abs_difference", bf16_loss_.max_abs},
                         {"corrected_tensors", corrected_.size()}}
                        .dump());
    items_.AddScalar({"step"}, 0);
    items_.AddEmptyDict({"opt_state"});
    items_.Finish();
    if (exact_) exact_->Finish();
    for (const auto& [name, text] : TextsOf(source_, FloatTypeOf(spec_.dtype))) {
      engine::WriteFileAtomically(context_.target / name, text);
    }
    Json dtypes = Json::object();
    for (const engine::NamedTensor& tensor : source_.tensors()) {
      dtypes[std::string(DTypeName(tensor.view.dtype))].push_back(tensor.name);
    }
    engine::WriteFileAtomically(context_.target / kMaxTextRecordFile,
                                Json{{"rotates_pairs", rotates_pairs},
                                     {"kept_f32", std::move(kept_f32_)},
                                     {"corrected", std::move(corrected_)},
                                     {"dtypes", std::move(dtypes)}}
                                        .dump(1) +
                                    "\n");
    WriteOrbaxStep(context_.target / "0", Json{{"scan_layers", is_scanned}}.dump(),
                   stamps_.items.time_ns);
  }

 private:
  // Dtype of a written parameter and the loss in it.
  struct Choice {
    DType dtype = DType::kF32;
    Loss loss;
    Loss bf16_loss;  // the loss that ruled out bf16
  };

  // The journal's first entry holds the stamps.
  static int64_t EntryOf(size_t leaf) { return static_cast<int64_t>(leaf) + 1; }

  OrbaxStorage Storage() const {
    return {.ocdbt = spec_.maxtext.ocdbt, .zarr = spec_.maxtext.zarr, .stamp = stamps_.items};
  }
  fs::path ExactDir() const { return context_.target / "exact"; }

  WrittenLeaf Write(const MaxTextLeaf& leaf) {
    DType tensor_dtype = tensors_.DTypeOf(leaf, 0);
    for (int64_t index = 1; index < leaf.n_tensors(); ++index) {
      if (tensors_.DTypeOf(leaf, index) != tensor_dtype) tensor_dtype = DType::kF32;
    }
    const Choice choice = Choose(leaf, tensor_dtype);
    WrittenLeaf written{.dtype = choice.dtype, .bf16_loss = choice.bf16_loss};
    written.values = WriteLeaf(leaf, choice.dtype);
    if (choice.loss.changed > 0) WriteCorrections(leaf, choice.dtype, &written);
    WriteRowsBeyond(leaf, &written);
    tensors_.LetGo(leaf);
    Report(leaf, written);
    return written;
  }

  bool Restore(const MaxTextLeaf& leaf, const WrittenLeaf& written) {
    if (!items_.Restore(Split(leaf.name), written.dtype, leaf.shape, written.values)) return false;
    std::set<std::string> known(leaf.tensors.begin(), leaf.tensors.end());
    if (HasRowsBeyond(leaf)) known.insert(RowsBeyondName(leaf));
    for (const WrittenLeaf::Exact& exact : written.exact) {
      if (known.erase(exact.name) == 0) return false;
      const bool is_rows = HasRowsBeyond(leaf) && exact.name == RowsBeyondName(leaf);
      const std::vector<int64_t> shape = is_rows ? RowsBeyondShape(leaf) : leaf.tensor_shape;
      if (!Exact().Restore({exact.name}, exact.dtype, shape, exact.values)) return false;
    }
    Report(leaf, written);
    return true;
  }

  // Collects the entry for maxtext.json and the result.
  void Report(const MaxTextLeaf& leaf, const WrittenLeaf& written) {
    if (written.bf16_loss.changed > 0) {
      kept_f32_.push_back({{"parameter", leaf.name},
                           {"changed_by_bf16", written.bf16_loss.changed},
                           {"of", Elements(leaf)},
                           {"max_abs_difference", written.bf16_loss.max_abs}});
      bf16_loss_.Add(written.bf16_loss);
    }
    for (const WrittenLeaf::Exact& exact : written.exact) {
      if (exact.corrected > 0) corrected_[exact.name] = exact.corrected;
    }
  }

  void Advance(const MaxTextLeaf& leaf) const {
    for (int64_t index = 0; index < leaf.n_tensors(); ++index) {
      context_.advance(static_cast<int64_t>(tensors_.ViewOf(leaf, index).bytes()));
    }
  }

  Choice Choose(const MaxTextLeaf& leaf, DType tensor_dtype) const {
    Choice choice;
    // MaxText supports f32 and bf16.
    choice.dtype = tensor_dtype == DType::kBF16 ? DType::kBF16 : DType::kF32;
    if (leaf.arithmetic.IsNone()) return choice;
    choice.loss = tensors_.LossIn(leaf, choice.dtype);
    if (choice.dtype == DType::kF32 || choice.loss.changed == 0) return choice;
    if (spec_.maxtext.all_bf16) return choice;
    choice.bf16_loss = choice.loss;
    choice.dtype = DType::kF32;
    choice.loss = tensors_.LossIn(leaf, choice.dtype);
    return choice;
  }

  static int64_t Elements(const MaxTextLeaf& leaf) {
    return engine::ElementCount(leaf.tensor_shape) * leaf.n_tensors();
  }

  StoredArray WriteLeaf(const MaxTextLeaf& leaf, DType dtype) {
    const std::vector<std::byte> bytes = tensors_.LeafBytes(leaf, dtype);
    StoredArray stored = items_.AddArray(Split(leaf.name), dtype, leaf.shape, bytes);
    Advance(leaf);
    return stored;
  }

  OrbaxItemWriter& Exact() {
    if (!exact_)
      exact_.emplace(ExactDir() / "items", OrbaxStorage{.stamp = stamps_.exact},
                     context_.ops.pool());
    return *exact_;
  }

  template <typename Int>
  void AddCorrections(const MaxTextLeaf& leaf, const std::string& name, DType dtype,
                      const std::vector<Int>& steps, WrittenLeaf* written) {
    const auto corrected =
        std::count_if(steps.begin(), steps.end(), [](Int step) { return step != 0; });
    if (corrected == 0) return;
    written->exact.push_back(
        {name, dtype, corrected,
         Exact().AddArray({name}, dtype, leaf.tensor_shape, std::as_bytes(std::span(steps)))});
  }

  void WriteCorrections(const MaxTextLeaf& leaf, DType dtype, WrittenLeaf* written) {
    std::vector<std::byte> buffer;
    for (int64_t index = 0; index < leaf.n_tensors(); ++index) {
      const std::string& name = leaf.tensors[static_cast<size_t>(index)];
      const ModelSource::Bytes tensor = tensors_.Read(leaf, index, &buffer);
      if (const auto bytes = tensors_.StepsOf<int8_t>(leaf, index, dtype, tensor)) {
        AddCorrections(leaf, name, DType::kI8, *bytes, written);
      } else {
        AddCorrections(leaf, name, DType::kI32,
                       *tensors_.StepsOf<int32_t>(leaf, index, dtype, tensor), written);
      }
    }
  }

  static bool HasRowsBeyond(const MaxTextLeaf& leaf) {
    return leaf.has_vocabulary && leaf.shape[0] < leaf.tensor_shape[0];
  }
  static std::string RowsBeyondName(const MaxTextLeaf& leaf) {
    return leaf.tensors.front() + kRowsBeyond;
  }
  static std::vector<int64_t> RowsBeyondShape(const MaxTextLeaf& leaf) {
    return {leaf.tensor_shape[0] - leaf.shape[0], leaf.tensor_shape[1]};
  }

  void WriteRowsBeyond(const MaxTextLeaf& leaf, WrittenLeaf* written) {
    if (!HasRowsBeyond(leaf)) return;
    std::vector<std::byte> buffer;
    const ModelSource::Bytes tensor = tensors_.Read(leaf, 0, &buffer);
    const size_t row_bytes = tensor.size() / static_cast<size_t>(leaf.tensor_shape[0]);
    const std::vector<int64_t> shape = RowsBeyondShape(leaf);
    const DType dtype = tensors_.DTypeOf(leaf, 0);
    written->exact.push_back(
        {RowsBeyondName(leaf), dtype, 0,
         Exact().AddArray({RowsBeyondName(leaf)}, dtype, shape,
                          tensor.last(static_cast<size_t>(shape[0]) * row_bytes))});
  }

  const ConvertSpec& spec_;
  const WriteContext& context_;
  const ModelSource& source_;
  const MaxTextTensors tensors_;
  const MaxTextStamps stamps_;
  OrbaxItemWriter items_;
  std::optional<OrbaxItemWriter> exact_;
  Loss bf16_loss_;  // of parameters kept in f32
  Json kept_f32_ = Json::array();
  Json corrected_ = Json::object();
};

// Returns the stamps of a killed conversion, if any.
std::optional<MaxTextStamps> StampsOf(const WriteContext& context) {
  if (context.journal == nullptr) return std::nullopt;
  const std::string* note = context.journal->Find(kJournaledAs, 0);
  return note == nullptr ? std::nullopt : ParseStamps(*note);
}

// Journals new stamps before anything is written with them.
MaxTextStamps StartOver(const WriteContext& context) {
  MaxTextStamps stamps;
  stamps.exact.time_ns = stamps.items.time_ns;
  if (context.journal == nullptr) return stamps;
  context.journal->Drop(kJournaledAs);
  fs::remove_all(context.target);
  fs::create_directory(context.target);
  const Journal::Entry entry{kJournaledAs, 0, NoteOf(stamps)};
  context.journal->Add({&entry, 1});
  return stamps;
}

}  // namespace

void WriteMaxText(const ConvertSpec& spec, const WriteContext& context) {
  const engine::ModelConfig config = ConfigOf(context.source).config;
  const MaxTextLayout layout{.is_scanned = spec.layout != "unscanned",
                             .rotates_pairs = RotatesPairs(spec.maxtext.model)};
  const std::vector<MaxTextLeaf> leaves = MaxTextLeaves(config, layout);
  if (const std::string caveat = MaxTextCaveat(config); !caveat.empty()) context.warn(caveat);
  std::optional<MaxTextWriter> writer;
  std::optional<size_t> n_written;
  if (const auto stamps = StampsOf(context)) {
    writer.emplace(spec, context, config, *stamps);
    n_written = writer->Restore(leaves);
  }
  if (!n_written) {
    writer.reset();
    writer.emplace(spec, context, config, StartOver(context));
  }
  writer->Write(leaves, n_written.value_or(0));
  writer->Finish(layout.is_scanned, layout.rotates_pairs);
}

std::unique_ptr<ModelSource> OpenWrittenMaxText(const ConvertSpec& /*spec*/,
                                                const fs::path& target) {
  return OpenMaxText(target, {}, std::nullopt, "");
}

// Compares by parameter, since reading tensor by tensor would read each parameter once per layer.
// Pieces keep whole tensors of both sides out of memory.
void CompareMaxText(const ConvertSpec& /*spec*/, const ModelSource& source,
                    const ModelSource& written, const std::function<void(int64_t bytes)>& advance) {
  std::vector<std::byte> buffer;
  ModelSource::Bytes whole;  // the source's tensor `at`, if it cannot be read by rows
  int64_t at = -1;
  int64_t compared = 0;
  const auto there = [&](const engine::ConstTensorView& view, int64_t offset, size_t bytes) {
    const int64_t n_rows = view.shape.empty() ? 1 : std::max<int64_t>(1, view.shape.front());
    const int64_t row_bytes = std::max<int64_t>(1, static_cast<int64_t>(view.bytes()) / n_rows);
    const int64_t first = offset / row_bytes;
    const int64_t end = offset + static_cast<int64_t>(bytes);
    const int64_t count = (end + row_bytes - 1) / row_bytes - first;
    if (const auto rows = source.ReadRows(at, first, count, &buffer)) {
      return rows->subspan(static_cast<size_t>(offset - first * row_bytes), bytes);
    }
    if (whole.empty()) whole = source.Read(at, &buffer);
    return whole.subspan(static_cast<size_t>(offset), bytes);
  };
  const auto is_same = [&](const engine::NamedTensor& tensor, int64_t offset,
                           ModelSource::Bytes piece) {
    if (at < 0 || source.tensors()[static_cast<size_t>(at)].name != tensor.name) {
      at = source.Find(tensor.name);
      if (at < 0) return false;
      whole = {};
    }
    const engine::ConstTensorView& was = source.tensors()[static_cast<size_t>(at)].view;
    if (was.dtype != tensor.view.dtype || was.shape != tensor.view.shape) return false;
    if (piece.empty()) return true;
    const ModelSource::Bytes wanted = there(was, offset, piece.size());
    const bool same = std::ranges::equal(wanted, piece);
    source.LetGoOf(wanted);
    return same;
  };
  for (int64_t part = 0; part < written.parts(); ++part) {
    written.ReadPieces(part, OneByOne, [&](const auto& tensor, int64_t offset, auto piece) {
      if (!is_same(tensor, offset, piece)) {
        throw Error(ErrorCode::kDataLoss,
                    source.name() + ": tensor " + Quoted(tensor.name) +
                        " differs from the written tensor; no target is written");
      }
      compared += static_cast<int64_t>(piece.size());
      advance(static_cast<int64_t>(piece.size()));
    });
  }
  if (compared == source.bytes()) return;
  throw Error(ErrorCode::kDataLoss, source.name() + ": some tensors were not written");
}

}  // namespace tandem::convert
