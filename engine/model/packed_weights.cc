#include "engine/model/packed_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <system_error>
#include <tuple>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/progress.h"
#include "engine/io/atomic_write.h"
#include "engine/io/block_writer.h"
#include "engine/io/posix_file.h"
#include "engine/io/sha256.h"
#include "engine/model/find_weight.h"
#include "engine/model/packed_sums.h"
#include "engine/model/stored_weights.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSectionAlignment = 64;

template <class Int>
void Append(std::string& bytes, Int value) {
  std::array<char, sizeof(Int)> raw;
  std::memcpy(raw.data(), &value, sizeof(Int));
  bytes.append(raw.data(), raw.size());
}

int64_t SectionBytes(const WeightSpec& spec, DType dtype, BlockFormat block) {
  if (spec.kind == WeightKind::kVector) return spec.n * static_cast<int64_t>(sizeof(float));
  if (block != BlockFormat::kNone) return PanelBytes(block, spec.n, spec.k);
  return PanelBytes(dtype, spec.n, spec.k);
}

const char* KindName(WeightKind kind) {
  switch (kind) {
    case WeightKind::kMatrix:
      return "matrix";
    case WeightKind::kEmbedding:
      return "embedding";
    case WeightKind::kVector:
      return "vector";
  }
  TANDEM_CHECK(false);
}

std::string TableText(const std::vector<WeightSpec>& specs, const PackedTypes& types,
                      const std::string& tensor_hash, const PackedLayout& layout) {
  std::string table = "content " + tensor_hash + " dtype " + types.name + "\n";
  for (size_t i = 0; i < specs.size(); ++i) {
    table += specs[i].name + " " + KindName(specs[i].kind) + " " + std::to_string(specs[i].n) +
             " " + std::to_string(specs[i].k) + " " + std::to_string(layout.offsets[i]) + " " +
             std::to_string(layout.sizes[i]);
    if (types.blocks[i] != BlockFormat::kNone) {
      table += std::string(" ") + BlockFormatName(types.blocks[i]) + "/" +
               std::to_string(kBlockLayoutVersion);
    }
    if (types.IsExact(i)) table += " exact";
    if (specs[i].offset != 0) table += " plus " + std::to_string(specs[i].offset);
    if (!types.decodings.empty() && !types.decodings[i].empty()) {
      table += " from " + types.decodings[i];
    }
    table += "\n";
  }
  return table;
}

// Places the sections after a header of `header_bytes`.
void PlaceSections(const std::vector<WeightSpec>& specs, const PackedTypes& types,
                   int64_t header_bytes, PackedLayout& layout) {
  layout.offsets.clear();
  layout.sizes.clear();
  int64_t at = RoundUp(header_bytes, kSectionAlignment);
  for (size_t i = 0; i < specs.size(); ++i) {
    layout.offsets.push_back(at);
    layout.sizes.push_back(SectionBytes(specs[i], types.dtype, types.blocks[i]));
    at = CheckedAdd(at, RoundUp(layout.sizes.back(), kSectionAlignment), "packed file size");
  }
  layout.file_bytes = at;
}

class Progress {
 public:
  // The sections are counted, without the header before them.
  Progress(const std::string& model, const PackOptions& options, const PackedLayout& layout)
      : report_(options.progress),
        total_bytes_(layout.file_bytes - (layout.offsets.empty() ? 0 : layout.offsets.front())),
        task_("packing weights of " + model, "bytes", total_bytes_) {}
  void Add(int64_t bytes) {
    done_bytes_ += bytes;
    task_.Add(bytes);
    if (report_) report_(static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_));
  }

 private:
  const std::function<void(double)>& report_;
  const int64_t total_bytes_;
  int64_t done_bytes_ = 0;
  ProgressTask task_;
};

// Writes the sections of one file.
class Packer {
 public:
  Packer(const ModelDir& dir, const std::vector<WeightSpec>& specs, const PackedTypes& types,
         OpsContext& ops)
      : dir_(dir), specs_(specs), types_(types), ops_(ops) {}

  // Releases the source's pages afterwards, so peak memory is the packed form and one weight.
  // REQUIRES: `section` is zeroed and of the rounded-up size.
  void Pack(size_t i, std::byte* section) {
    const WeightSpec& spec = specs_[i];
    const std::optional<StoredTensor> source = FindWeight(dir_, spec);
    TANDEM_CHECK(source);
    if (spec.kind == WeightKind::kVector) {
      const std::span values(reinterpret_cast<float*>(section), static_cast<size_t>(spec.n));
      if (source->IsAsAsked()) {
        ConvertToF32(source->view, values);
      } else {
        ReadRows(*source, 0, source->rows(), values.data());
      }
      for (float& value : values) value += spec.offset;
    } else if (types_.blocks[i] != BlockFormat::kNone) {
      PackBlocks(i, *source, section);
    } else if (source->IsAsAsked()) {
      PackPanels(ops_, source->view, spec.layout, spec.n, spec.k, types_.dtype, section);
    } else {
      const BlockError error =
          PackStored(ops_, *source, spec, types_.dtype, BlockFormat::kNone, false, section);
      if (!std::isfinite(error.squared_error)) ThrowNoNumber(spec);
    }
    dir_.LetGo(*source);
  }

  void ReportError() const {
    for (const auto& [from, sum] : sums_) {
      const auto& [encoding, block, exact] = from;
      if (exact && sum.error.squared_error == 0) {
        spdlog::info("weights copied to blocks unchanged model={} from={} to={} weights={}",
                     dir_.name(), EncodingName(encoding), BlockFormatName(block), sum.n_weights);
        continue;
      }
      spdlog::info(
          "weights rounded to blocks model={} dtype={} from={} to={} weights={} "
          "relative_rms_error={:.5f} max_abs_error={:.6f}",
          dir_.name(), types_.name,
          encoding == Encoding::kPlain ? "floats" : EncodingName(encoding), BlockFormatName(block),
          sum.n_weights, sum.error.Relative(), sum.error.max_abs);
    }
  }

 private:
  // Other formats of blocks pass numbers on that are not finite, as plain floats are.
  [[noreturn]] void ThrowNoNumber(const WeightSpec& spec) const {
    throw Error(ErrorCode::kDataLoss,
                dir_.name() + ": tensor '" + spec.name + "'" + std::string(kScaleOfNoNumber));
  }
  void PackBlocks(size_t i, const StoredTensor& source, std::byte* section) {
    const WeightSpec& spec = specs_[i];
    const BlockFormat block = types_.blocks[i];
    const bool exact = types_.IsExact(i);
    const BlockError error =
        source.IsAsAsked()
            ? PackBlockPanels(ops_, source.view, spec.layout, spec.n, spec.k, block, section)
            : PackStored(ops_, source, spec, types_.dtype, block, exact, section);
    const bool is_mxfp4 =
        source.encoding == Encoding::kMXFP4 || source.encoding == Encoding::kMxfp4Split;
    if (!std::isfinite(error.Relative()) && is_mxfp4 && exact) ThrowNoNumber(spec);
    if (!std::isfinite(error.Relative())) {
      throw Error(
          ErrorCode::kUnsupported,
          dir_.name() + ": tensor '" + spec.name + "' has values that " + BlockFormatName(block) +
              " cannot represent (not finite, or of magnitude above 5e5); use --dtype bf16");
    }
    spdlog::debug("weight rounded to blocks name={} format={} relative_rms_error={:.5f}", spec.name,
                  BlockFormatName(block), error.Relative());
    Sum& sum = sums_[{source.encoding, block, exact}];
    sum.error.Add(error);
    ++sum.n_weights;
  }

  const ModelDir& dir_;
  const std::vector<WeightSpec>& specs_;
  const PackedTypes& types_;
  OpsContext& ops_;
  struct Sum {
    BlockError error;
    int64_t n_weights = 0;
  };
  std::map<std::tuple<Encoding, BlockFormat, bool>, Sum> sums_;  // from, to, exact
};

AlignedBuffer PackInMemory(const ModelDir& dir, const std::vector<WeightSpec>& specs,
                           const PackedTypes& types, const PackedLayout& layout,
                           const PackOptions& options, OpsContext& ops) {
  AlignedBuffer bytes(static_cast<size_t>(layout.file_bytes));
  Progress progress(dir.name(), options, layout);
  Packer packer(dir, specs, types, ops);
  for (size_t i = 0; i < specs.size(); ++i) {
    packer.Pack(i, bytes.data() + layout.offsets[i]);
    progress.Add(RoundUp(layout.sizes[i], kSectionAlignment));
  }
  dir.CheckUnchanged();
  packer.ReportError();
  return bytes;
}

// Writes the packed file and its checksums, one section at a time: peak memory is the largest
// weight, not the model.
void PackIntoFile(const ModelDir& dir, const std::vector<WeightSpec>& specs,
                  const PackedTypes& types, const PackedLayout& layout, const PackOptions& options,
                  OpsContext& ops, const fs::path& entry) {
  const auto section_bytes = [&](size_t i) {
    return static_cast<size_t>(RoundUp(layout.sizes[i], kSectionAlignment));
  };
  size_t largest = 0;
  for (size_t i = 0; i < specs.size(); ++i) largest = std::max(largest, section_bytes(i));
  AlignedBuffer section(largest);

  BlockWriter file(entry / kPackedFileName);
  PackedSums sums;
  const auto write = [&](std::span<const std::byte> bytes) {
    file.Write(bytes);
    sums.Add(bytes);
  };
  write(std::as_bytes(std::span(layout.header)));
  Progress progress(dir.name(), options, layout);
  Packer packer(dir, specs, types, ops);
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::span<std::byte> bytes = section.span().first(section_bytes(i));
    std::memset(bytes.data(), 0, bytes.size());
    packer.Pack(i, bytes.data());
    write(bytes);
    progress.Add(static_cast<int64_t>(bytes.size()));
  }
  file.Finish();
  WriteFileAtomically(entry / kPackedSumsName, sums.Finish());
  dir.CheckUnchanged();
  packer.ReportError();
}

// A clause that says how the entry differs from the expected file; nullopt when it does not.
std::optional<std::string> WhatIsWrong(const fs::path& entry, const MappedFile& file,
                                       const PackedLayout& layout, ThreadPool& pool) {
  const std::span<const std::byte> bytes = file.bytes();
  if (static_cast<int64_t>(bytes.size()) != layout.file_bytes) return "its size is wrong";
  if (std::memcmp(bytes.data(), layout.header.data(), layout.header.size()) != 0) {
    return "its header is damaged or belongs to another model";
  }
  const std::optional<std::string> sums = ReadPackedSums(entry / kPackedSumsName);
  if (!sums) return "it has no checksums";
  return FindDamage(file, *sums, pool);
}

// The packed file, if it exists and is exactly the expected one. Removes any other file. A missing
// file removes nothing: another process may be about to publish it.
std::shared_ptr<const MappedFile> OpenPacked(const fs::path& entry, const PackedLayout& layout,
                                             ThreadPool& pool) {
  std::error_code error;
  if (!fs::is_regular_file(entry / kPackedFileName, error)) return nullptr;
  std::shared_ptr<const MappedFile> file = MappedFile::Open(entry / kPackedFileName);
  if (const std::optional<std::string> wrong = WhatIsWrong(entry, *file, layout, pool)) {
    spdlog::warn("packed weights are rebuilt path={} reason=\"{}\"",
                 (entry / kPackedFileName).string(), *wrong);
    fs::remove_all(entry, error);
    return nullptr;
  }
  // The time of last use orders eviction. A read-only cache does not record it.
  fs::last_write_time(entry, fs::file_time_type::clock::now(), error);
  return file;
}

// Evicts the least recently used entries until `incoming_bytes` fit. Processes that have mapped an
// evicted file keep it.
void MakeRoom(const fs::path& packed_dir, int64_t limit_bytes, int64_t incoming_bytes) {
  struct Entry {
    fs::file_time_type used;
    fs::path path;
    int64_t bytes;
  };
  std::vector<Entry> entries;
  int64_t total = incoming_bytes;
  std::error_code error;
  for (fs::directory_iterator at(packed_dir, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code gone;  // another process may be evicting too
    const auto bytes = fs::file_size(at->path() / kPackedFileName, gone);
    if (gone) continue;
    const auto used = fs::last_write_time(at->path(), gone);
    if (gone) continue;
    entries.push_back({used, at->path(), static_cast<int64_t>(bytes)});
    total += entries.back().bytes;
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.used < b.used; });
  for (const Entry& entry : entries) {
    if (total <= limit_bytes) return;
    std::error_code ignored;
    fs::remove_all(entry.path, ignored);
    total -= entry.bytes;
    spdlog::info("evicted packed weights path={} bytes={}", entry.path.string(), entry.bytes);
  }
}

// The mapped file, made first if needed. Null, with one warning, when the cache cannot hold it.
std::shared_ptr<const MappedFile> FindOrMakePacked(const ModelDir& dir,
                                                   const std::vector<WeightSpec>& specs,
                                                   const PackedTypes& types,
                                                   const PackedLayout& layout,
                                                   const PackOptions& options, OpsContext& ops) {
  const fs::path packed_dir = options.cache_dir / "packed";
  const fs::path entry = packed_dir / layout.key;
  const auto give_up = [&](const std::string& reason) {
    spdlog::warn("packed weights stay in memory and are not shared with jobs reason=\"{}\"",
                 reason);
    return nullptr;
  };
  if (layout.file_bytes > options.cache_limit_bytes) {
    return give_up(std::to_string(layout.file_bytes) + " bytes exceed the cache size of " +
                   std::to_string(options.cache_limit_bytes));
  }
  std::shared_ptr<const MappedFile> file;
  // A disk error is no reason not to run. Every other error, such as a wrong source tensor, passes.
  const auto failure =
      ErrorOf({ErrorCode::kAlreadyExists, ErrorCode::kIo, ErrorCode::kNotFound}, [&] {
        file = OpenPacked(entry, layout, ops.pool());
        if (file != nullptr) return;
        std::error_code error;
        fs::create_directories(packed_dir, error);
        if (error) ThrowSystemError("create", packed_dir, error.value());
        RemoveStaleTemporaries(packed_dir);
        // An interrupted removal leaves at most checksums without a packed file.
        if (!fs::exists(entry / kPackedFileName, error)) fs::remove(entry / kPackedSumsName, error);
        fs::remove(entry, error);
        MakeRoom(packed_dir, options.cache_limit_bytes, layout.file_bytes);
        PublishDirectory(entry, [&](const fs::path& temporary) {
          PackIntoFile(dir, specs, types, layout, options, ops, temporary);
        });
      });
  if (file != nullptr) return file;
  // kAlreadyExists: another process published first, and its file is equally good.
  if (failure && failure->code() != ErrorCode::kAlreadyExists) return give_up(failure->what());
  file = OpenPacked(entry, layout, ops.pool());
  return file != nullptr ? file : give_up("could not open " + entry.string());
}

}  // namespace

PackedLayout LayOutWeights(const std::vector<WeightSpec>& specs, const PackedTypes& types,
                           const std::string& tensor_hash) {
  TANDEM_CHECK(types.blocks.size() == specs.size());
  PackedLayout layout;
  // The table contains offsets that depend on its own length: repeat until the length settles.
  int64_t header_bytes = 0;
  std::string table;
  do {
    header_bytes = static_cast<int64_t>(kPackedHeaderBytes + table.size());
    PlaceSections(specs, types, header_bytes, layout);
    table = TableText(specs, types, tensor_hash, layout);
  } while (static_cast<int64_t>(kPackedHeaderBytes + table.size()) > layout.offsets.at(0));

  std::string header(kPackedMagic);
  Append(header, kPackedFormatVersion);
  Append(header, kPanelLayoutVersion);
  Append(header, static_cast<uint64_t>(table.size()));
  Append(header, static_cast<uint64_t>(layout.file_bytes));
  Sha256 hash;
  hash.Update(header);
  hash.Update(table);
  const Sha256Digest digest = hash.Finish();
  header.append(reinterpret_cast<const char*>(digest.data()), digest.size());
  header += table;
  header.resize(static_cast<size_t>(layout.offsets.at(0)), '\0');
  layout.header = std::move(header);
  layout.key = types.name + "-" + ToHex(digest).substr(0, 32);
  return layout;
}

PackedWeights LoadPackedWeights(const ModelDir& dir, const std::vector<WeightSpec>& specs,
                                const PackedTypes& types, const PackedLayout& layout,
                                const PackOptions& options, OpsContext& ops) {
  PackedWeights packed;
  if (!options.cache_dir.empty()) {
    packed.mapped = FindOrMakePacked(dir, specs, types, layout, options, ops);
  }
  const std::byte* base = nullptr;
  if (packed.mapped != nullptr) {
    base = packed.mapped->bytes().data();
  } else {
    packed.owned = PackInMemory(dir, specs, types, layout, options, ops);
    base = packed.owned.data();
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    Weight& weight = packed.weights.emplace_back();
    weight.index = static_cast<int32_t>(i);
    weight.spec = &specs[i];
    const std::byte* section = base + layout.offsets[i];
    if (specs[i].kind == WeightKind::kVector) {
      weight.vector = reinterpret_cast<const float*>(section);
    } else {
      weight.panels = {.panels = section,
                       .dtype = types.dtype,
                       .n = specs[i].n,
                       .k = specs[i].k,
                       .block = types.blocks[i]};
    }
  }
  return packed;
}

}  // namespace tandem::engine
