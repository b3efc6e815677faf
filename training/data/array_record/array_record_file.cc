#include "training/data/array_record/array_record_file.h"

#include <zstd.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/io/mapped_file.h"
#include "training/data/array_record/byte_reader.h"
#include "training/data/array_record/highway_hash.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlock = 65536;
constexpr uint64_t kBlockHeader = 24;  // hash, distances to the chunks before and after
constexpr uint64_t kUsable = kBlock - kBlockHeader;  // bytes of chunks in a block
constexpr uint64_t kChunkHeader = 40;  // hash, data size, data hash, type and records, decoded size
constexpr uint64_t kMaxVarint = 10;    // bytes

constexpr char kSignature = 's', kMetadata = 'm', kPadding = 'p', kSimple = 'r', kTransposed = 't';

// The end of n > 0 bytes of a chunk from `begin` on, with the block headers between them. A chunk
// at a block's edge begins with the block's header.
uint64_t EndOf(uint64_t begin, uint64_t n) {
  const uint64_t in_block = begin % kBlock;
  const uint64_t used = (in_block == 0 ? 0 : in_block - kBlockHeader) + n;
  const uint64_t blocks = (used - 1) / kUsable;
  return begin - in_block + blocks * kBlock + kBlockHeader + (used - blocks * kUsable);
}

// No chunk begins within a block header or just after it.
bool IsBoundary(uint64_t at) { return at % kBlock == 0 || at % kBlock > kBlockHeader; }

// Values after their decoded size, unpacked by zstd.
std::vector<std::byte> UnpackZstd(std::span<const std::byte> packed, uint64_t most,
                                  const std::string& name) {
  ByteReader reader(packed, name);
  const uint64_t size = reader.Varint();
  if (size > most) {
    throw Error(ErrorCode::kDataLoss, name + ": a chunk has more bytes than its header says");
  }
  std::vector<std::byte> out(static_cast<size_t>(size));
  const auto rest = reader.rest();
  const size_t n = ZSTD_decompress(out.data(), out.size(), rest.data(), rest.size());
  if (ZSTD_isError(n) != 0 || n != out.size()) {
    throw Error(ErrorCode::kDataLoss, name + ": the zstd data of a chunk are damaged");
  }
  return out;
}

// At most `most` bytes.
std::vector<std::byte> Unpack(char compression, std::span<const std::byte> packed, uint64_t most,
                              const std::string& name) {
  switch (compression) {
    case 0:
      return {packed.begin(), packed.end()};
    case 'z':
      return UnpackZstd(packed, most, name);
    default:
      throw Error(ErrorCode::kUnsupported,
                  name + ": is compressed with " + (compression == 'b' ? "Brotli" : "Snappy") +
                      ", which is not supported: write it with the option zstd or uncompressed");
  }
}

}  // namespace

void ArrayRecordFile::Damaged(uint64_t at, const std::string& what) const {
  throw Error(ErrorCode::kDataLoss, name_ + ": at byte " + std::to_string(at) + ": " + what);
}

std::shared_ptr<const ArrayRecordFile> ArrayRecordFile::Open(const fs::path& path,
                                                             std::shared_ptr<ChunkCache> cache) {
  auto file = engine::MappedFile::Open(path);
  const std::span<const std::byte> bytes = file->bytes();
  return Of(bytes, std::move(file), path.string(), std::move(cache));
}

std::shared_ptr<const ArrayRecordFile> ArrayRecordFile::Of(std::span<const std::byte> bytes,
                                                           std::shared_ptr<const void> owner,
                                                           const std::string& name,
                                                           std::shared_ptr<ChunkCache> cache) {
  const std::shared_ptr<ArrayRecordFile> file(
      new ArrayRecordFile(bytes, std::move(owner), name, std::move(cache)));
  file->Index();
  return file;
}

// The next n bytes of chunks, without the block headers between them.
std::vector<std::byte> ArrayRecordFile::Gather(uint64_t* at, uint64_t n) const {
  if (n > bytes_.size()) Damaged(*at, "the file ends within a chunk");
  std::vector<std::byte> out;
  out.reserve(static_cast<size_t>(n));
  while (out.size() < n) {
    if (*at % kBlock == 0) *at += kBlockHeader;
    const uint64_t in_block = kBlock - *at % kBlock;
    const uint64_t count = std::min(in_block, n - out.size());
    if (*at > bytes_.size() || count > bytes_.size() - *at) {
      Damaged(*at, "the file ends within a chunk");
    }
    const auto piece = bytes_.subspan(static_cast<size_t>(*at), static_cast<size_t>(count));
    out.insert(out.end(), piece.begin(), piece.end());
    *at += count;
  }
  return out;
}

ArrayRecordFile::Header ArrayRecordFile::ReadHeader(uint64_t begin) const {
  uint64_t at = begin;
  const std::vector<std::byte> bytes = Gather(&at, kChunkHeader);
  ByteReader reader(bytes, name_);
  const uint64_t hash = reader.Fixed(8);
  if (hash != RiegeliHash(std::span(bytes).subspan(8))) {
    Damaged(begin, "the hash of a chunk's header is wrong");
  }
  Header header;
  header.data_size = reader.Fixed(8);
  header.data_hash = reader.Fixed(8);
  header.type = static_cast<char>(reader.Byte());
  header.n_records = reader.Fixed(7);
  header.decoded_size = reader.Fixed(8);
  if (header.data_size > bytes_.size()) Damaged(begin, "a chunk is larger than the file");
  // A chunk takes at least a byte for each record, and ends at a boundary.
  header.end = std::max(EndOf(begin, kChunkHeader + header.data_size), begin + header.n_records);
  if (!IsBoundary(header.end)) header.end += kBlockHeader + 1 - header.end % kBlock;
  if (header.end > bytes_.size()) Damaged(begin, "a chunk reaches beyond the file");
  return header;
}

// The last block holds a chunk with copies of the postscript {1: offset of the footer}.
uint64_t ArrayRecordFile::FooterOffset() const {
  if (bytes_.size() < 2 * kBlock || bytes_.size() % kBlock != 0) {
    throw Error(ErrorCode::kDataLoss,
                name_ + ": is no finished ArrayRecord file: its size is no multiple of 64 KiB");
  }
  const uint64_t begin = bytes_.size() - kBlock;
  const ArrayRecords records = ReadChunk(begin);
  if (records.size() > 0) {
    ByteReader reader(std::as_bytes(std::span(records[0])), name_);
    if (reader.Byte() == ((1 << 3) | 0)) {
      const uint64_t offset = reader.Varint();
      if (offset < begin) return offset;
    }
  }
  Damaged(begin, "the postscript is missing: the file was not finished");
}

void ArrayRecordFile::Index() {
  const uint64_t footer = FooterOffset();
  for (uint64_t at = 0; at < footer;) {
    const Header header = ReadHeader(at);
    if (at == 0 && header.type != kSignature) Damaged(0, "the file has no signature of Riegeli");
    if (header.type == kTransposed) {
      throw Error(ErrorCode::kUnsupported,
                  name_ + ": has transposed chunks: write it without the option transpose");
    }
    constexpr std::string_view kWithoutRecords{"smp"};
    if (header.type == kSimple) {
      const auto n = static_cast<int64_t>(header.n_records);
      if (n > 0) chunks_.push_back({at, n_records_, n});
      n_records_ += n;
    } else if (kWithoutRecords.find(header.type) == std::string_view::npos) {
      Damaged(at, "a chunk has an unknown type");
    }
    at = header.end;
  }
  if (n_records_ == 0) throw Error(ErrorCode::kDataLoss, name_ + ": the file has no records");
}

// A chunk of the simple form: compression, size of the packed sizes, sizes of all records, bytes of
// all records.
ArrayRecords ArrayRecordFile::ReadChunk(uint64_t begin) const {
  const Header header = ReadHeader(begin);
  if (header.type != kSimple) Damaged(begin, "a chunk of records is expected");
  uint64_t at = begin;
  Gather(&at, kChunkHeader);
  const std::vector<std::byte> data = Gather(&at, header.data_size);
  if (RiegeliHash(data) != header.data_hash) Damaged(begin, "the hash of a chunk's data is wrong");
  if (header.decoded_size > kMaxChunkBytes) Damaged(begin, "a chunk has more than 1 GiB");

  ByteReader reader(data, name_);
  const char compression = static_cast<char>(reader.Byte());
  const std::vector<std::byte> sizes =
      Unpack(compression, reader.Bytes(reader.Varint()), header.n_records * kMaxVarint, name_);
  ArrayRecords records;
  records.bytes = Unpack(compression, reader.rest(), header.decoded_size, name_);
  ByteReader size_reader(sizes, name_);
  records.ends.reserve(static_cast<size_t>(header.n_records));
  uint64_t end = 0;
  for (uint64_t i = 0; i < header.n_records; ++i) {
    const uint64_t size = size_reader.Varint();
    if (size > records.bytes.size() - end) Damaged(begin, "a record ends after its chunk");
    records.ends.push_back(end += size);
  }
  if (!size_reader.is_done() || end != records.bytes.size() || end != header.decoded_size) {
    Damaged(begin, "the records of a chunk are shorter than the chunk");
  }
  return records;
}

std::string ArrayRecordFile::Read(int64_t i) const {
  TANDEM_CHECK(i >= 0 && i < n_records_);
  const auto after = std::upper_bound(
      chunks_.begin(), chunks_.end(), i,
      [](int64_t record, const Chunk& chunk) { return record < chunk.first_record; });
  const auto index = static_cast<size_t>(after - chunks_.begin()) - 1;
  const Chunk& chunk = chunks_[index];
  const auto record = static_cast<size_t>(i - chunk.first_record);
  if (chunk.n_records == 1) return std::string(ReadChunk(chunk.begin)[record]);
  auto records = cache_->Find(file_, index);
  if (records == nullptr) {
    records = std::make_shared<const ArrayRecords>(ReadChunk(chunk.begin));
    cache_->Add(file_, index, records);
  }
  return std::string((*records)[record]);
}

}  // namespace tandem::training
