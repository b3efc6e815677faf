#include "training/run/shared_files.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "training/run/run_export.h"
#include "training/step/export_dtype.h"
#include "training/step/moment_shards.h"
#include "training/step/tensor_files.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// "model" of "model.safetensors".
std::string KindOf(const char* file) { return std::string(file, std::string_view(file).find('.')); }

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

bool WritesTogether(const RunParts& parts) {
  if (parts.ranks == nullptr || parts.ranks->size() == 1) return false;
  const ParameterStore& parameters = parts.trainer.parameters();
  return parts.spec.checkpoint.sharded || parameters.shares_weights() ||
         parameters.tensor().is_split();
}

std::vector<SharedFile> DivideIntoFiles(const std::string& kind, const std::vector<int64_t>& bytes,
                                        int writers, int64_t most) {
  const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  const int64_t target = SharedFileBytes(all, writers, most);
  std::vector<SharedFile> files;
  int64_t in_last = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (files.empty() || (in_last > 0 && in_last + bytes[i] > target)) {
      files.push_back({"", static_cast<int>(files.size()) % writers, {}});
      in_last = 0;
    }
    files.back().tensors.push_back(i);
    in_last += bytes[i];
  }
  for (size_t i = 0; i < files.size(); ++i) files[i].name = TensorFileName(kind, i, files.size());
  return files;
}

// The tensors of one file, and their memory on its writer.
struct SharedFiles::Content {
  std::vector<engine::NamedTensor> tensors;
  std::vector<std::vector<std::byte>> bytes;
};

SharedFiles::SharedFiles(const RunParts& parts, bool with_state, std::string place)
    : parts_(parts), place_(std::move(place)), weights_(ListExported(parts.trainer.parameters())) {
  // The parts of the state are only read.
  auto& parameters = const_cast<ParameterStore&>(parts.trainer.parameters());
  const int writers = parts.ranks->size();
  std::vector<int64_t> sizes;
  for (const ExportedTensor& tensor : weights_) {
    sizes.push_back(tensor.bytes());
    weight_bytes_ += sizes.back();
  }
  // PEFT's readers want one file.
  const int64_t most = parts.is_adapter() ? INT64_MAX : parts.spec.checkpoint.shard_bytes;
  weight_files_ = DivideIntoFiles(KindOf(WeightsFile(parts)), sizes, writers, most);
  if (!with_state) return;
  for (engine::NamedTensor& tensor : parameters.OptimizerTensors()) {
    state_.push_back({std::move(tensor), 0, {}, {}});
  }
  if (parameters.shard().size > 1 || parameters.tensor().is_split()) {
    for (ParameterStore::MomentPart& part : parameters.MomentParts()) {
      state_.push_back(
          {{part.name, {nullptr, part.dtype, part.shape}}, part.weight, part.own, part.part_bytes});
    }
  }
  sizes.clear();
  for (const State& state : state_) {
    sizes.push_back(static_cast<int64_t>(state.tensor.view.bytes()));
  }
  state_files_ = DivideIntoFiles("optim", sizes, writers, parts.spec.checkpoint.shard_bytes);
  if (state_files_.empty()) state_files_.push_back({"optim.safetensors", 0, {}});
}

std::map<std::string, std::string> SharedFiles::texts() const {
  if (weight_files_.size() < 2) return {};
  ordered_json map = ordered_json::object();
  for (const SharedFile& file : weight_files_) {
    for (const size_t i : file.tensors) map[weights_[i].name] = file.name;
  }
  const ordered_json index = {{"metadata", {{"total_size", weight_bytes_}}}, {"weight_map", map}};
  return {{"model.safetensors.index.json", index.dump(2) + "\n"}};
}

std::vector<std::byte> SharedFiles::GatherWeight(size_t weight, int root) const {
  const ParameterStore& parameters = parts_.trainer.parameters();
  const bool is_root = parts_.ranks->rank() == root;
  const engine::WeightSpec& spec = parameters.whole_specs()[weight];
  const engine::DType dtype = ExportDType(spec, parameters.dtype());
  std::vector<float> joined;
  std::span<const std::byte> own = parameters.MasterPart(weight);
  if (dtype != parameters.dtype()) {
    joined = parameters.Master(weight);
    own = std::as_bytes(std::span(joined));
  }
  const bool is_shared = parameters.shares_weights() && parameters.trained()[weight];
  if (!is_shared && !parameters.tensor().is_split()) {
    return is_root ? parameters.ExportSource(weight) : std::vector<std::byte>();
  }
  const size_t width = engine::DTypeBytes(dtype);
  std::vector<int64_t> part_bytes;
  for (int rank = 0; is_shared && rank < parameters.shard().size; ++rank) {
    const auto [begin, end] = parameters.OwnRange(weight, rank);
    part_bytes.push_back((end - begin) * static_cast<int64_t>(width));
  }
  if (!is_shared) part_bytes.push_back(static_cast<int64_t>(own.size()));
  std::vector<std::byte> whole;
  if (is_root) whole.resize(static_cast<size_t>(spec.n * spec.k) * width);
  if (parameters.tensor().is_split()) {
    GatherWhole(*parts_.ranks, root, parameters, weight, width, own, part_bytes, whole.data());
  } else {
    GatherParts(*parts_.ranks, root, own, part_bytes, whole.data());
  }
  return is_root ? parameters.ExportSource(weight, whole) : whole;
}

void SharedFiles::Collect(const SharedFile& file, bool is_state, Content* content) const {
  const bool is_writer = parts_.ranks->rank() == file.writer;
  const ParameterStore& parameters = parts_.trainer.parameters();
  for (const size_t i : file.tensors) {
    if (is_state) {
      const State& state = state_[i];
      engine::NamedTensor tensor = state.tensor;
      if (!state.part_bytes.empty()) {
        auto& bytes = content->bytes.emplace_back(is_writer ? tensor.view.bytes() : 0);
        if (parameters.tensor().is_split()) {
          GatherWhole(*parts_.ranks, file.writer, parameters, state.weight,
                      engine::DTypeBytes(tensor.view.dtype), state.own, state.part_bytes,
                      bytes.data());
        } else {
          GatherParts(*parts_.ranks, file.writer, state.own, state.part_bytes, bytes.data());
        }
        tensor.view.data = bytes.data();
      }
      content->tensors.push_back(std::move(tensor));
      continue;
    }
    const ExportedTensor& tensor = weights_[i];
    const auto source = [&](size_t weight) { return GatherWeight(weight, file.writer); };
    if (is_writer) {
      content->bytes.push_back(BytesOf(parameters, tensor, source));
    } else {
      for (const auto& member : tensor.members) source(member.spec);
      content->bytes.emplace_back();
    }
    content->tensors.push_back(
        {tensor.name, {content->bytes.back().data(), tensor.dtype, tensor.shape}});
  }
}

void SharedFiles::CheckIsShared(const fs::path& directory) const {
  Collectives& ranks = *parts_.ranks;
  std::error_code failed;
  const bool is_there = fs::is_directory(directory, failed);
  std::string fault;
  if (!is_there) {
    fault = "rank " + std::to_string(ranks.rank()) + " on " + HostName() + " has no " +
            directory.string() + ": " + place_ +
            " must be a directory that all hosts share, because all ranks write to it "
            "(checkpoint.sharded, ici_fsdp_parallelism)";
  }
  for (const std::string& text : ranks.AllGatherText(fault)) {
    if (!text.empty()) throw Error(ErrorCode::kIo, text);
  }
}

std::vector<CheckpointFile> SharedFiles::WriteMine(const fs::path& directory) {
  CheckIsShared(directory);
  Collectives& ranks = *parts_.ranks;
  // What a rank tells the others: the files that it wrote, or why it could not.
  ordered_json mine = {{"files", ordered_json::array()}, {"fault", ""}};
  const auto write = [&](const std::vector<SharedFile>& files, bool is_state) {
    std::map<std::string, std::string> metadata = {{"format", "pt"}};
    if (!is_state && parts_.is_adapter()) metadata = AdapterMetadata(parts_);
    const auto n_writers = static_cast<size_t>(ranks.size());
    for (size_t first = 0; first < files.size(); first += n_writers) {
      std::optional<size_t> own;
      Content content;
      // All ranks gather for a round of writers; then these write at the same time.
      for (size_t f = first; f < std::min(files.size(), first + n_writers); ++f) {
        Content one;
        Collect(files[f], is_state, &one);
        if (files[f].writer != ranks.rank()) continue;
        own = f;
        content = std::move(one);
      }
      if (!own || mine["fault"] != "") continue;
      const auto error = ErrorOf([&] {
        const std::string sha256 =
            engine::WriteSafetensors(directory / files[*own].name, content.tensors, metadata);
        mine["files"].push_back({files[*own].name, sha256});
      });
      if (error) mine["fault"] = error->what();
    }
  };
  write(weight_files_, false);
  write(state_files_, true);

  std::vector<CheckpointFile> all;
  for (const std::string& text : ranks.AllGatherText(mine.dump())) {
    const ordered_json theirs = ordered_json::parse(text);
    if (theirs["fault"] != "") throw Error(ErrorCode::kIo, theirs["fault"].get<std::string>());
    for (const ordered_json& file : theirs["files"]) all.push_back({file[0], file[1]});
  }
  return all;
}

void SharedFiles::WriteAll(const std::function<void(const Write& write)>& publish) {
  Collectives& ranks = *parts_.ranks;
  if (!ranks.is_first()) {
    const std::string directory = ranks.BroadcastText("", 0);
    // The first rank reports faults.
    if (!directory.empty()) ErrorOf({ErrorCode::kIo}, [&] { WriteMine(directory); });
    return;
  }
  bool told = false;
  const std::exception_ptr fault = FaultOf([&] {
    publish([&](const fs::path& directory) {
      told = true;
      ranks.BroadcastText(directory.string(), 0);
      return WriteMine(directory);
    });
  });
  if (!told) ranks.BroadcastText("", 0);  // nothing to write
  if (fault) std::rethrow_exception(fault);
}

}  // namespace tandem::training
