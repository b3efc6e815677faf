#include "convert/orbax/orbax_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "convert/orbax/zarr_writer.h"
#include "engine/base/error.h"
#include "engine/base/parallel_for.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Encoded chunks waiting to be written, in bytes before compression.
constexpr int64_t kWaveBytes = int64_t{64} << 20;
constexpr int kDictKey = 2;  // Orbax's key type for dictionaries

// Refuses keys that cannot be in a directory name, a dotted name and Python quotes alike.
void CheckKey(const std::string& key) {
  const bool is_plain = !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return c > ' ' && c < 0x7f && c != '/' && c != '\\' && c != '\'' && c != '"';
  });
  if (is_plain && key != "." && key != "..") return;
  throw Error(ErrorCode::kInvalidArgument, Quoted(key) + " is not a valid key in a checkpoint");
}

std::string NameOf(const OrbaxItemWriter::Path& path) {
  std::string name;
  for (const std::string& key : path) name += (name.empty() ? "" : ".") + key;
  return name;
}

// Returns a Python tuple's text, which names the entries of Orbax's tree.
std::string TupleText(const OrbaxItemWriter::Path& path) {
  std::string text = "(";
  for (size_t i = 0; i < path.size(); ++i) text += (i > 0 ? ", '" : "'") + path[i] + "'";
  return text + (path.size() == 1 ? ",)" : ")");
}

std::string MetadataKey(const std::string& name, const ZarrArray& array) {
  return name + "/" + ZarrMetadataName(array);
}

std::string ChunkKey(const std::string& name, const ZarrArray& array, int64_t chunk) {
  return name + "/" + ZarrChunkKey(array, ZarrChunkPosition(array, chunk));
}

}  // namespace

struct OrbaxItemWriter::Tree {
  Json entries = Json::object();
  Json arrays = Json::array();

  void Add(const Path& path, Json value) {
    Json keys = Json::array();
    for (const std::string& key : path) {
      CheckKey(key);
      keys.push_back({{"key", key}, {"key_type", kDictKey}});
    }
    const std::string name = TupleText(path);
    if (entries.contains(name)) throw Error(ErrorCode::kInternal, name + " was added twice");
    entries[name] = {{"key_metadata", std::move(keys)}, {"value_metadata", std::move(value)}};
  }

  void AddArray(const Path& path, const ZarrArray& array) {
    Add(path, {{"value_type", "np.ndarray"}, {"skip_deserialize", false}});
    arrays.push_back({{"array_metadata",
                       {{"param_name", NameOf(path)},
                        {"write_shape", array.shape},
                        {"chunk_shape", array.chunk_shape},
                        {"ext_metadata", nullptr}}}});
  }
};

OrbaxItemWriter::OrbaxItemWriter(const fs::path& dir, const OrbaxStorage& storage, ThreadPool& pool)
    : dir_(dir), storage_(storage), pool_(pool), tree_(std::make_unique<Tree>()) {
  fs::create_directories(dir_);
  values_ =
      storage_.ocdbt ? WriteOcdbt(dir_, storage_.stamp, storage_.ocdbt_sizes) : WriteFileTree(dir_);
}

OrbaxItemWriter::~OrbaxItemWriter() = default;

ZarrArray OrbaxItemWriter::Plan(engine::DType dtype, const std::vector<int64_t>& shape) const {
  return PlanZarr(storage_.zarr, dtype, shape, storage_.max_chunk_bytes);
}

StoredArray OrbaxItemWriter::PutAll(const std::string& name, const ZarrArray& array,
                                    std::span<const std::byte> bytes) {
  if (static_cast<int64_t>(bytes.size()) != array.bytes()) {
    throw Error(ErrorCode::kInternal, name + ": the number of bytes does not match the shape");
  }
  StoredArray put;
  const std::string text = ZarrMetadataText(array);
  put.push_back(values_->Put(MetadataKey(name, array), std::as_bytes(std::span(text))));
  int64_t chunk_bytes = array.element_bytes;
  for (const int64_t size : array.chunk_shape) chunk_bytes *= size;
  const int64_t at_once = std::max<int64_t>(2 * pool_.n_threads(), kWaveBytes / chunk_bytes);
  const int64_t n_chunks = ZarrChunkCount(array);
  for (int64_t first = 0; first < n_chunks; first += at_once) {
    std::vector<std::vector<std::byte>> encoded(
        static_cast<size_t>(std::min(at_once, n_chunks - first)));
    RunAll(pool_, static_cast<int64_t>(encoded.size()), [&](int64_t i, int) {
      encoded[static_cast<size_t>(i)] = EncodeZarrChunk(array, first + i, bytes);
    });
    for (size_t i = 0; i < encoded.size(); ++i) {
      put.push_back(
          values_->Put(ChunkKey(name, array, first + static_cast<int64_t>(i)), encoded[i]));
      encoded[i] = {};
    }
  }
  return put;
}

StoredArray OrbaxItemWriter::AddArray(const Path& path, engine::DType dtype,
                                      const std::vector<int64_t>& shape,
                                      std::span<const std::byte> bytes) {
  const ZarrArray array = Plan(dtype, shape);
  tree_->AddArray(path, array);
  return PutAll(NameOf(path), array, bytes);
}

bool OrbaxItemWriter::Restore(const Path& path, engine::DType dtype,
                              const std::vector<int64_t>& shape, const StoredArray& put) {
  const ZarrArray array = Plan(dtype, shape);
  tree_->AddArray(path, array);
  const std::string name = NameOf(path);
  if (static_cast<int64_t>(put.size()) != 1 + ZarrChunkCount(array)) return false;
  if (!values_->Restore(MetadataKey(name, array), put[0])) return false;
  for (size_t i = 1; i < put.size(); ++i) {
    if (!values_->Restore(ChunkKey(name, array, static_cast<int64_t>(i) - 1), put[i])) return false;
  }
  return true;
}

void OrbaxItemWriter::RemoveOthers() {
  const std::vector<std::string> files = values_->Files();
  const std::set<fs::path> ours(files.begin(), files.end());
  std::vector<fs::path> others;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(dir_)) {
    if (entry.is_directory() && !entry.is_symlink()) continue;
    if (!ours.contains(entry.path().lexically_relative(dir_))) others.push_back(entry.path());
  }
  for (const fs::path& path : others) fs::remove(path);
}

void OrbaxItemWriter::AddScalar(const Path& path, int64_t value) {
  tree_->Add(path, {{"value_type", "scalar"}, {"skip_deserialize", false}});
  PutAll(NameOf(path), Plan(engine::DType::kI64, {}), std::as_bytes(std::span(&value, 1)));
}

void OrbaxItemWriter::AddEmptyDict(const Path& path) {
  tree_->Add(path, {{"value_type", "Dict"}, {"skip_deserialize", true}});
}

void OrbaxItemWriter::Finish() {
  values_->Finish();
  fs::create_directories(dir_ / "array_metadatas");
  engine::WriteFileAtomically(dir_ / "array_metadatas" / "process_0",
                              Json{{"array_metadatas", tree_->arrays}}.dump());
  engine::WriteFileAtomically(dir_ / "_METADATA",
                              Json{{"tree_metadata", tree_->entries},
                                   {"use_ocdbt", storage_.ocdbt},
                                   {"use_zarr3", storage_.zarr == 3},
                                   {"store_array_data_equal_to_fill_value", true},
                                   {"custom_metadata", nullptr}}
                                  .dump());
}

void WriteOrbaxStep(const fs::path& step_dir, const std::string& custom_json, int64_t time_ns) {
  engine::WriteFileAtomically(
      step_dir / "_CHECKPOINT_METADATA",
      Json{{"item_handlers",
            {{"items",
              "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"}}},
           {"metrics", Json::object()},
           {"performance_metrics", Json::object()},
           {"init_timestamp_nsecs", time_ns},
           {"commit_timestamp_nsecs", time_ns},
           {"custom_metadata", Json::parse(custom_json)}}
          .dump());
}

}  // namespace tandem::convert
