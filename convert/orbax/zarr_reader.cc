// Reading alternates between listing a batch of chunks in order and decoding it on all threads. A
// failure to list is thrown after the chunks before it are decoded, because their failures come
// first.

#include "convert/orbax/zarr_reader.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <utility>

#include "convert/orbax/byte_reader.h"
#include "convert/orbax/zstd.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/crc32c.h"

namespace tandem::convert {
namespace {

constexpr uint64_t kNoChunk = std::numeric_limits<uint64_t>::max();
// Chunks listed at a time: enough for all threads, with few open values.
constexpr size_t kBatch = 256;
// Larger buffers are not reused.
constexpr size_t kMostKeptBytes = size_t{64} << 20;

// A zstd block decodes to at most 128 KiB and takes at least four bytes.
constexpr uint64_t kMostBytesPerStoredByte = uint64_t{1} << 15;

void RequireReadable(const std::string& prefix, const ZarrArray& array) {
  if (array.IsReadable()) return;
  throw Error(ErrorCode::kUnsupported,
              Quoted(prefix) + ": element type " + Quoted(array.type_name) + " is not supported");
}

// Steps through the positions of a grid in C order; returns false after the last.
bool Next(std::vector<int64_t>& at, const std::vector<int64_t>& sizes) {
  for (size_t i = at.size(); i-- > 0;) {
    if (++at[i] < sizes[i]) return true;
    at[i] = 0;
  }
  return false;
}

std::vector<int64_t> GridOf(const std::vector<int64_t>& shape, const std::vector<int64_t>& chunk) {
  std::vector<int64_t> grid(shape.size());
  for (size_t i = 0; i < grid.size(); ++i) grid[i] = (shape[i] + chunk[i] - 1) / chunk[i];
  return grid;
}

int64_t Product(const std::vector<int64_t>& sizes) {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

// Shape of the units of decoding: values, or chunks in shards.
const std::vector<int64_t>& DecodedShape(const ZarrArray& array) {
  return array.sharding ? array.sharding->chunk_shape : array.chunk_shape;
}

struct StoredChunk {
  std::shared_ptr<const StoredBytes> value;  // the value that holds the chunk
  std::span<const std::byte> bytes;
  std::string key;             // of the value
  std::vector<int64_t> first;  // position of the first element in the array

  [[noreturn]] void Broken(const std::string& why) const {
    throw Error(ErrorCode::kDataLoss, Quoted(key) + ": " + why);
  }
  // Releases its mapped pages.
  void LetGo() const {
    if (value->file != nullptr) value->file->LetGo(bytes);
  }
};

// Lists the chunks of an array in order.
class ChunkList {
 public:
  ChunkList(const KeyValues& values, const std::string& prefix, const ZarrArray& array)
      : values_(values),
        prefix_(prefix),
        array_(array),
        grid_(GridOf(array.shape, array.chunk_shape)),
        at_(grid_.size(), 0),
        is_over_(array.bytes() == 0) {
    if (array.sharding) inner_grid_ = GridOf(array.chunk_shape, array.sharding->chunk_shape);
  }

  // Returns the next chunks; empty after the last.
  std::vector<StoredChunk> Take() {
    std::vector<StoredChunk> chunks;
    if (!fault_) {  // rethrown after the chunks before it
      fault_ = FaultOf([&] {
        while (chunks.size() < kBatch && !is_over_) Add(&chunks);
      });
    }
    if (chunks.empty() && fault_) std::rethrow_exception(fault_);
    return chunks;
  }

 private:
  void Add(std::vector<StoredChunk>* chunks) {
    if (value_.value == nullptr) Open();
    if (!array_.sharding) {
      chunks->push_back(std::exchange(value_, {}));
      is_over_ = !Next(at_, grid_);
      return;
    }
    AddOfShard(chunks);
    if (Next(inner_, inner_grid_)) return;
    value_ = {};
    is_over_ = !Next(at_, grid_);
  }

  void Open() {
    value_.key = prefix_ + "/" + ZarrChunkKey(array_, at_);
    std::optional<StoredBytes> stored = values_.Find(value_.key);
    if (!stored) value_.Broken("the chunk is missing");
    value_.first.resize(at_.size());
    for (size_t i = 0; i < at_.size(); ++i) value_.first[i] = at_[i] * array_.chunk_shape[i];
    value_.value = std::make_shared<const StoredBytes>(std::move(*stored));
    value_.bytes = value_.value->bytes;
    if (!array_.sharding) return;
    index_ = IndexOf(static_cast<uint64_t>(Product(inner_grid_)));
    next_in_index_ = 0;
    inner_.assign(inner_grid_.size(), 0);
  }

  // Reads a shard's index: offset and length of each of `n` chunks.
  std::vector<uint64_t> IndexOf(uint64_t n) const {
    const auto& sharding = *array_.sharding;
    const std::span<const std::byte> shard = value_.bytes;
    const uint64_t bytes = n * 16 + (sharding.index_has_crc ? 4 : 0);
    if (n > shard.size() / 16 || bytes > shard.size())
      value_.Broken("the shard is shorter than its index");
    const auto index = sharding.index_at_start ? shard.first(static_cast<size_t>(bytes))
                                               : shard.last(static_cast<size_t>(bytes));
    ByteReader in(index, Quoted(value_.key));
    std::vector<uint64_t> numbers(static_cast<size_t>(2 * n));
    for (uint64_t& number : numbers) number = in.U64();
    if (sharding.index_has_crc &&
        engine::Crc32c(0, index.first(static_cast<size_t>(n * 16))) != in.U32()) {
      value_.Broken("the index is damaged: its CRC-32C does not match");
    }
    return numbers;
  }

  void AddOfShard(std::vector<StoredChunk>* chunks) {
    const uint64_t offset = index_[next_in_index_];
    const uint64_t length = index_[next_in_index_ + 1];
    next_in_index_ += 2;
    std::vector<int64_t> first(inner_.size());
    for (size_t d = 0; d < inner_.size(); ++d) {
      first[d] = value_.first[d] + inner_[d] * array_.sharding->chunk_shape[d];
      if (first[d] >= array_.shape[d]) return;  // outside the array; writers omit these
    }
    if (offset == kNoChunk && length == kNoChunk) value_.Broken("a chunk of the shard is missing");
    if (offset > value_.bytes.size() || length > value_.bytes.size() - offset) {
      value_.Broken("the index refers to bytes outside the shard");
    }
    const auto bytes =
        value_.bytes.subspan(static_cast<size_t>(offset), static_cast<size_t>(length));
    chunks->push_back({value_.value, bytes, value_.key, std::move(first)});
  }

  const KeyValues& values_;
  const std::string& prefix_;
  const ZarrArray& array_;
  const std::vector<int64_t> grid_;
  std::vector<int64_t> inner_grid_;  // of a shard
  std::vector<int64_t> at_;          // grid position of the open or next value
  bool is_over_;
  std::exception_ptr fault_;
  StoredChunk value_;  // the open value, if it is a shard
  std::vector<uint64_t> index_;
  size_t next_in_index_ = 0;
  std::vector<int64_t> inner_;
};

}  // namespace

struct ZarrReader::Space {
  ZstdDecoder zstd;
  AlignedBuffer run;    // kRunBytes, if needed
  AlignedBuffer chunk;  // for chunks that are not decoded in place

  static std::span<std::byte> Room(AlignedBuffer* buffer, size_t n) {
    if (buffer->size() < n) {
      *buffer = {};
      *buffer = AlignedBuffer(n);
    }
    return buffer->span().first(n);
  }
};

class ZarrReader::Reading {
 public:
  Reading(const ZarrReader& reader, const std::string& prefix, const ZarrArray& array)
      : reader_(reader),
        array_(array),
        chunk_(DecodedShape(array)),
        chunk_bytes_(static_cast<size_t>(Product(chunk_) * array.element_bytes)),
        list_(*reader.values_, prefix, array) {
    RequireReadable(prefix, array);
  }

  using Work = std::function<void(const StoredChunk& chunk, Space* space)>;
  void Run(const ParallelFor& parallel_for, const Work& work) {
    for (auto chunks = list_.Take(); !chunks.empty(); chunks = list_.Take()) {
      RunAll(parallel_for, static_cast<int64_t>(chunks.size()), [&](int64_t i) {
        const StoredChunk& chunk = chunks[static_cast<size_t>(i)];
        std::unique_ptr<Space> space = reader_.Borrow();
        work(chunk, space.get());
        chunk.LetGo();
        reader_.GiveBack(std::move(space));
      });
    }
  }

  // Returns the chunk's bytes, decoded into `space` if compressed.
  std::span<const std::byte> Whole(const StoredChunk& chunk, Space* space) const {
    if (!array_.is_compressed) return Plain(chunk);
    const std::span<std::byte> room = Space::Room(&space->chunk, chunk_bytes_);
    space->zstd.Decode(chunk.bytes, room, Quoted(chunk.key));
    return room;
  }

  void Forget(const StoredChunk& chunk, Space* space) const {
    if (!array_.is_compressed || chunk_bytes_ <= kMostKeptBytes) {
      (void)Whole(chunk, space);
      return;
    }
    // A buffer for the whole chunk would be new, and clearing its pages is not decompression.
    space->zstd.DecodeInPieces(chunk.bytes, chunk_bytes_, Space::Room(&space->run, kRunBytes),
                               Quoted(chunk.key), [](int64_t, std::span<const std::byte>) {});
  }

  // Writes the chunk to its place in the array, and decodes it in place if it is one run.
  void Put(const StoredChunk& chunk, Space* space, std::span<std::byte> out) const {
    const auto run = RunOf(chunk);
    if (!run || run->bytes != chunk_bytes_) return Place(Whole(chunk, space), chunk, out);
    const auto to = out.subspan(static_cast<size_t>(run->offset), run->bytes);
    if (array_.is_compressed) return space->zstd.Decode(chunk.bytes, to, Quoted(chunk.key));
    std::memcpy(to.data(), Plain(chunk).data(), to.size());
  }

  // REQUIRES: HasRuns(array).
  void InRuns(const StoredChunk& chunk, Space* space, const TakeRun& take) const {
    const ArrayRun run = *RunOf(chunk);
    const auto within = [&](int64_t offset, std::span<const std::byte> piece) {
      const auto from = static_cast<size_t>(offset);
      if (from >= run.bytes) return;
      take(run.offset + offset, piece.first(std::min(piece.size(), run.bytes - from)));
    };
    if (array_.is_compressed) {
      return space->zstd.DecodeInPieces(chunk.bytes, chunk_bytes_,
                                        Space::Room(&space->run, std::min(kRunBytes, chunk_bytes_)),
                                        Quoted(chunk.key), within);
    }
    const std::span<const std::byte> all = Plain(chunk);
    for (size_t at = 0; at < all.size(); at += kRunBytes) {
      within(static_cast<int64_t>(at), all.subspan(at, std::min(kRunBytes, all.size() - at)));
    }
  }

 private:
  struct ArrayRun {
    int64_t offset = 0;  // both in bytes
    size_t bytes = 0;
  };

  std::span<const std::byte> Plain(const StoredChunk& chunk) const {
    if (chunk.bytes.size() == chunk_bytes_) return chunk.bytes;
    chunk.Broken("the chunk has " + std::to_string(chunk.bytes.size()) + " bytes instead of " +
                 std::to_string(chunk_bytes_));
  }

  // Returns the run of the array that a chunk covers, clipped to the array.
  std::optional<ArrayRun> RunOf(const StoredChunk& chunk) const {
    if (!HasRuns(array_)) return std::nullopt;
    int64_t offset = 0;
    int64_t elements = 1;
    for (size_t d = 0; d < chunk_.size(); ++d) {
      offset = offset * array_.shape[d] + chunk.first[d];
      elements *= std::min(chunk_[d], array_.shape[d] - chunk.first[d]);
    }
    return ArrayRun{offset * array_.element_bytes,
                    static_cast<size_t>(elements * array_.element_bytes)};
  }

  // Copies the part of a chunk inside the array, row by row.
  void Place(std::span<const std::byte> from, const StoredChunk& chunk,
             std::span<std::byte> out) const {
    const size_t rank = chunk_.size();
    std::vector<int64_t> inside(rank);
    for (size_t d = 0; d < rank; ++d) {
      inside[d] = std::min(chunk_[d], array_.shape[d] - chunk.first[d]);
    }
    const int64_t run = (rank == 0 ? 1 : inside.back()) * array_.element_bytes;
    std::vector<int64_t> rows(inside.begin(), inside.end() - (rank == 0 ? 0 : 1));
    std::vector<int64_t> at(rows.size(), 0);
    do {
      int64_t source = 0;
      int64_t target = 0;
      for (size_t d = 0; d < rank; ++d) {
        const int64_t i = d < at.size() ? at[d] : 0;
        source = source * chunk_[d] + i;
        target = target * array_.shape[d] + chunk.first[d] + i;
      }
      std::memcpy(out.data() + target * array_.element_bytes,
                  from.data() + source * array_.element_bytes, static_cast<size_t>(run));
    } while (Next(at, rows));
  }

  const ZarrReader& reader_;
  const ZarrArray& array_;
  const std::vector<int64_t>& chunk_;
  const size_t chunk_bytes_;
  ChunkList list_;
};

ZarrReader::ZarrReader(std::shared_ptr<const KeyValues> values) : values_(std::move(values)) {}
ZarrReader::~ZarrReader() = default;

std::unique_ptr<ZarrReader::Space> ZarrReader::Borrow() const {
  {
    const std::lock_guard lock(mutex_);
    if (!spaces_.empty()) {
      std::unique_ptr<Space> space = std::move(spaces_.back());
      spaces_.pop_back();
      return space;
    }
  }
  return std::make_unique<Space>();
}

void ZarrReader::GiveBack(std::unique_ptr<Space> space) const {
  if (space->chunk.size() > kMostKeptBytes) space->chunk = {};
  const std::lock_guard lock(mutex_);
  spaces_.push_back(std::move(space));
}

void ZarrReader::CheckStored(const std::string& prefix, const ZarrArray& array) const {
  RequireReadable(prefix, array);
  if (array.bytes() == 0) return;
  const uint64_t most_per_byte = array.is_compressed ? kMostBytesPerStoredByte : 1;
  const std::vector<int64_t> grid = GridOf(array.shape, array.chunk_shape);
  std::vector<int64_t> at(grid.size(), 0);
  do {
    const std::string key = prefix + "/" + ZarrChunkKey(array, at);
    const std::optional<StoredBytes> stored = values_->Find(key);
    if (!stored) throw Error(ErrorCode::kDataLoss, Quoted(key) + ": the chunk is missing");
    int64_t needed = array.element_bytes;  // of the part inside the array
    for (size_t d = 0; d < at.size(); ++d) {
      needed *= std::min(array.chunk_shape[d], array.shape[d] - at[d] * array.chunk_shape[d]);
    }
    if (static_cast<uint64_t>(needed) / most_per_byte <= stored->bytes.size()) continue;
    throw Error(ErrorCode::kDataLoss, Quoted(key) + ": the array's shape needs " +
                                          std::to_string(needed) + " bytes, which " +
                                          std::to_string(stored->bytes.size()) +
                                          " compressed bytes cannot contain");
  } while (Next(at, grid));
}

void ZarrReader::Read(const std::string& prefix, const ZarrArray& array, std::span<std::byte> out,
                      const ParallelFor& parallel_for) const {
  if (static_cast<int64_t>(out.size()) != array.bytes()) {
    throw Error(ErrorCode::kInternal, prefix + ": the output has the wrong number of bytes");
  }
  Reading reading(*this, prefix, array);
  reading.Run(parallel_for,
              [&](const StoredChunk& chunk, Space* space) { reading.Put(chunk, space, out); });
}

void ZarrReader::ReadRuns(const std::string& prefix, const ZarrArray& array, const TakeRun& take,
                          const ParallelFor& parallel_for) const {
  Reading reading(*this, prefix, array);
  reading.Run(parallel_for,
              [&](const StoredChunk& chunk, Space* space) { reading.InRuns(chunk, space, take); });
}

void ZarrReader::Decompress(const std::string& prefix, const ZarrArray& array,
                            const ParallelFor& parallel_for) const {
  Reading reading(*this, prefix, array);
  reading.Run(parallel_for,
              [&](const StoredChunk& chunk, Space* space) { reading.Forget(chunk, space); });
}

}  // namespace tandem::convert
