#include "training/data/array_record/array_record_file.h"

#include <zstd.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/io/mapped_file.h"
#include "training/data/array_record/byte_reader.h"
#include "training/data/array_record/highway_hash.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlock = 65536;
constexpr uint64_t kBlockHeader = 24;  // hash, distances to the chunks before and after
constexpr uint64_t kChunkHeader = 40;  // hash, data size, data hash, type and records, decoded size

constexpr char kSignature = 's', kMetadata = 'm', kPadding = 'p', kSimple = 'r', kTransposed = 't';

// Values after their decoded size, unpacked by zstd.
std::vector<std::byte> UnpackZstd(std::span<const std::byte> packed, const std::string& name) {
  ByteReader reader(packed, name);
  const uint64_t size = reader.Varint();
  if (size > ArrayRecordFile::kMaxChunkBytes) {
    throw Error(ErrorCode::kDataLoss, name + ": a chunk has more than 1 GiB");
  }
  std::vector<std::byte> out(static_cast<size_t>(size));
  const auto rest = reader.rest();
  const size_t n = ZSTD_decompress(out.data(), out.size(), rest.data(), rest.size());
  if (ZSTD_isError(n) != 0 || n != out.size()) {
    throw Error(ErrorCode::kDataLoss, name + ": the zstd data of a chunk are damaged");
  }
  return out;
}

std::vector<std::byte> Unpack(char compression, std::span<const std::byte> packed,
                              const std::string& name) {
  switch (compression) {
    case 0:
      return {packed.begin(), packed.end()};
    case 'z':
      return UnpackZstd(packed, name);
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

std::shared_ptr<const ArrayRecordFile> ArrayRecordFile::Open(const fs::path& path) {
  auto file = engine::MappedFile::Open(path);
  const std::span<const std::byte> bytes = file->bytes();
  return Of(bytes, std::move(file), path.string());
}

std::shared_ptr<const ArrayRecordFile> ArrayRecordFile::Of(std::span<const std::byte> bytes,
                                                           std::shared_ptr<const void> owner,
                                                           const std::string& name) {
  const std::shared_ptr<ArrayRecordFile> file(new ArrayRecordFile(bytes, std::move(owner), name));
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
  // Block headers interrupt the data.
  const uint64_t left = kBlock - at % kBlock;
  header.end = at + header.data_size;
  if (header.data_size > left) {
    const uint64_t whole = kBlock - kBlockHeader;
    header.end += (header.data_size - left + whole - 1) / whole * kBlockHeader;
  }
  // A chunk takes at least a byte for each record, and does not end within a block header.
  const uint64_t least = begin + header.n_records;
  const uint64_t in_header = least % kBlock;
  const bool must_round = in_header != 0 && in_header < kBlockHeader;
  header.end = std::max(header.end, must_round ? least - in_header + kBlockHeader : least);
  return header;
}

// The last block holds a chunk with copies of the postscript {1: offset of the footer}.
uint64_t ArrayRecordFile::FooterOffset() const {
  if (bytes_.size() < 2 * kBlock || bytes_.size() % kBlock != 0) {
    throw Error(ErrorCode::kDataLoss,
                name_ + ": is no finished ArrayRecord file: its size is no multiple of 64 KiB");
  }
  const uint64_t begin = bytes_.size() - kBlock;
  const Records records = ReadChunk(begin);
  if (!records.empty()) {
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
      if (header.n_records > header.decoded_size + header.data_size) {
        Damaged(at, "a chunk has more records than bytes");
      }
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
ArrayRecordFile::Records ArrayRecordFile::ReadChunk(uint64_t begin) const {
  const Header header = ReadHeader(begin);
  if (header.type != kSimple) Damaged(begin, "a chunk of records is expected");
  uint64_t at = begin;
  Gather(&at, kChunkHeader);
  const std::vector<std::byte> data = Gather(&at, header.data_size);
  if (RiegeliHash(data) != header.data_hash) Damaged(begin, "the hash of a chunk's data is wrong");
  if (header.decoded_size > kMaxChunkBytes) Damaged(begin, "a chunk has more than 1 GiB");

  ByteReader reader(data, name_);
  const char compression = static_cast<char>(reader.Byte());
  const std::vector<std::byte> sizes = Unpack(compression, reader.Bytes(reader.Varint()), name_);
  const std::vector<std::byte> values = Unpack(compression, reader.rest(), name_);
  ByteReader size_reader(sizes, name_);
  ByteReader value_reader(values, name_);
  Records records;
  for (uint64_t i = 0; i < header.n_records; ++i) {
    const auto record = value_reader.Bytes(size_reader.Varint());
    records.emplace_back(reinterpret_cast<const char*>(record.data()), record.size());
  }
  if (!size_reader.is_done() || !value_reader.is_done()) {
    Damaged(begin, "the records of a chunk are shorter than the chunk");
  }
  return records;
}

std::string ArrayRecordFile::Read(int64_t i) const {
  const auto after = std::upper_bound(
      chunks_.begin(), chunks_.end(), i,
      [](int64_t record, const Chunk& chunk) { return record < chunk.first_record; });
  const auto index = static_cast<size_t>(after - chunks_.begin()) - 1;
  const Chunk& chunk = chunks_[index];
  std::shared_ptr<const Records> records;
  {
    const std::lock_guard lock(mutex_);
    if (newest_ != nullptr && newest_index_ == index) records = newest_;
  }
  if (records == nullptr) {
    records = std::make_shared<const Records>(ReadChunk(chunk.begin));
    const std::lock_guard lock(mutex_);
    newest_ = records;
    newest_index_ = index;
  }
  return records->at(static_cast<size_t>(i - chunk.first_record));
}

}  // namespace tandem::training
