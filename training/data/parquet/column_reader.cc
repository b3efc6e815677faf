#include "training/data/parquet/column_reader.h"

#include <limits>
#include <string>
#include <utility>

#include "engine/base/utf8.h"
#include "training/data/parquet/codecs.h"
#include "training/data/parquet/encodings.h"

namespace tandem::training {
namespace {

constexpr const char* kRewrite =
    "; rewrite the file, for example with pyarrow.parquet.write_table(table, path, "
    "compression='zstd', use_dictionary=True)";

bool IsEncodingRead(ParquetEncoding encoding) {
  switch (encoding) {
    case ParquetEncoding::kPlain:
    case ParquetEncoding::kPlainDictionary:
    case ParquetEncoding::kRle:
    case ParquetEncoding::kBitPacked:  // old writers list it for absent levels
    case ParquetEncoding::kRleDictionary:
      return true;
  }
  return false;
}

// Values of one kind: of a column, or of its dictionary.
struct Values {
  std::vector<int64_t> integers;
  std::vector<double> doubles;
  std::vector<std::string_view> strings;
};

// Decodes the pages of a column chunk in order.
class ChunkDecoder {
 public:
  ChunkDecoder(const ParquetLeaf& leaf, ParquetCodec codec, const ParquetPlace& place,
               DecodeBudget& budget)
      : leaf_(leaf), codec_(codec), place_(place), budget_(budget) {}

  DecodedColumn Decode(std::span<const std::byte> chunk, int64_t n_values, int64_t n_rows) {
    while (n_entries_ < n_values) {
      if (chunk.empty()) {
        place_.Broken("its pages have " + std::to_string(n_entries_) + " of " +
                      std::to_string(n_values) + " values");
      }
      const PageHeader page = ReadPageHeader(chunk, place_);
      const auto body =
          chunk.subspan(page.header_bytes, static_cast<size_t>(page.compressed_bytes));
      chunk = chunk.subspan(page.header_bytes + body.size());
      if (page.crc && *page.crc != PageCrc(body)) place_.Broken("a page fails its checksum");
      const size_t n_kept = out_.pages.size();
      DecodePage(page, body, n_values);
      // Only strings point into pages; dictionary strings point into the dictionary page.
      if (leaf_.type != ParquetType::kByteArray ||
          (page.type != PageType::kDictionary && page.encoding != ParquetEncoding::kPlain)) {
        out_.pages.resize(n_kept);
      }
    }
    out_.integers = std::move(values_.integers);
    out_.doubles = std::move(values_.doubles);
    out_.strings = std::move(values_.strings);
    IndexRows(n_rows);
    return std::move(out_);
  }

 private:
  void DecodePage(const PageHeader& page, std::span<const std::byte> body, int64_t n_values) {
    switch (page.type) {
      case PageType::kDictionary:
        DecodeDictionary(page, body);
        return;
      case PageType::kData:
      case PageType::kDataV2:
        if (page.n_values > n_values - n_entries_) {
          place_.Broken("its pages have more than the " + std::to_string(n_values) +
                        " values it declares");
        }
        page.type == PageType::kData ? DecodeV1(page, body) : DecodeV2(page, body);
        n_entries_ += page.n_values;
        return;
      case PageType::kIndex:
        return;  // not needed
    }
    place_.Refuse("a page of type " + std::to_string(static_cast<int>(page.type)) +
                  " is not supported" + kRewrite);
  }

  // The page's bytes: in place if not compressed, else in memory that out_ keeps.
  std::span<const std::byte> Open(std::span<const std::byte> body, size_t bytes, bool compressed) {
    if (!compressed || codec_ == ParquetCodec::kUncompressed) {
      if (body.size() != bytes) {
        place_.Broken("an uncompressed page of " + std::to_string(body.size()) +
                      " bytes declares " + std::to_string(bytes));
      }
      return body;
    }
    if (bytes == 0) return {};
    budget_.Take(bytes, place_);
    out_.pages.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
    const std::span<std::byte> page(out_.pages.back().get(), bytes);
    Decompress(codec_, body, page, place_);
    return page;
  }

  void DecodeDictionary(const PageHeader& page, std::span<const std::byte> body) {
    if (has_dictionary_) place_.Broken("it has two dictionaries");
    if (n_entries_ > 0) place_.Broken("its dictionary comes after values");
    if (page.encoding != ParquetEncoding::kPlain &&
        page.encoding != ParquetEncoding::kPlainDictionary) {
      place_.Refuse("a dictionary in the encoding " + NameOf(page.encoding) + " is not supported" +
                    kRewrite);
    }
    has_dictionary_ = true;
    const auto bytes = Open(body, static_cast<size_t>(page.bytes), /*compressed=*/true);
    ReadPlain(PageBytes(bytes, place_), static_cast<uint64_t>(page.n_values), dictionary_);
    dictionary_size_ = static_cast<uint32_t>(page.n_values);
  }

  void DecodeV1(const PageHeader& page, std::span<const std::byte> body) {
    PageBytes bytes(Open(body, static_cast<size_t>(page.bytes), /*compressed=*/true), place_);
    const auto n = static_cast<uint64_t>(page.n_values);
    const auto levels = [&](int max, ParquetEncoding encoding, const char* what) {
      if (max == 0) return std::span<const std::byte>();
      if (encoding != ParquetEncoding::kRle) {
        place_.Refuse(std::string(what) + " in the encoding " + NameOf(encoding) +
                      " are not supported" + kRewrite);
      }
      return bytes.Take(bytes.Length(what), what);
    };
    const auto repetitions =
        levels(leaf_.max_repetition, page.repetition_encoding, "repetition levels");
    const auto definitions =
        levels(leaf_.max_definition, page.definition_encoding, "definition levels");
    const uint64_t n_present = ReadLevels(repetitions, definitions, n);
    ReadValues(page.encoding, bytes, n_present);
  }

  void DecodeV2(const PageHeader& page, std::span<const std::byte> body) {
    PageBytes bytes(body, place_);
    const auto repetitions =
        bytes.Take(static_cast<uint64_t>(page.repetition_bytes), "repetition levels");
    const auto definitions =
        bytes.Take(static_cast<uint64_t>(page.definition_bytes), "definition levels");
    const size_t level_bytes = repetitions.size() + definitions.size();
    if (level_bytes > static_cast<size_t>(page.bytes)) {
      place_.Broken("a page's levels are larger than the page");
    }
    const auto values =
        Open(bytes.rest(), static_cast<size_t>(page.bytes) - level_bytes, page.is_compressed);
    const uint64_t n_present =
        ReadLevels(repetitions, definitions, static_cast<uint64_t>(page.n_values));
    ReadValues(page.encoding, PageBytes(values, place_), n_present);
  }

  // Appends the levels of n entries. Returns the number of entries with a value.
  uint64_t ReadLevels(std::span<const std::byte> repetitions,
                      std::span<const std::byte> definitions, uint64_t n) {
    const auto append = [&](std::span<const std::byte> bytes, int max, std::vector<uint8_t>& to,
                            const char* what) {
      if (max == 0) return;
      budget_.Take(n, place_);
      const auto limit = static_cast<uint32_t>(max);
      HybridReader(bytes, BitWidth(limit), place_, what)
          .Read(n, limit, [&](uint32_t level, uint64_t count) {
            to.insert(to.end(), static_cast<size_t>(count), static_cast<uint8_t>(level));
          });
    };
    append(repetitions, leaf_.max_repetition, out_.repetitions, "repetition levels");
    const size_t before = out_.definitions.size();
    append(definitions, leaf_.max_definition, out_.definitions, "definition levels");
    if (leaf_.max_definition == 0) return n;
    uint64_t n_present = 0;
    for (size_t i = before; i < out_.definitions.size(); ++i) {
      n_present += out_.definitions[i] == leaf_.max_definition ? 1 : 0;
    }
    return n_present;
  }

  void ReadValues(ParquetEncoding encoding, PageBytes bytes, uint64_t n) {
    // A page of nulls may be empty.
    if (n == 0) return;
    switch (encoding) {
      case ParquetEncoding::kPlain:
        ReadPlain(bytes, n, values_);
        return;
      case ParquetEncoding::kPlainDictionary:
      case ParquetEncoding::kRleDictionary:
        ReadIndices(bytes, n);
        return;
      case ParquetEncoding::kRle:
        if (leaf_.type != ParquetType::kBoolean) break;
        budget_.Take(n * sizeof(int64_t), place_);
        HybridReader(bytes.Take(bytes.Length("booleans"), "booleans"), 1, place_, "booleans")
            .Read(n, 1, [&](uint32_t value, uint64_t count) {
              values_.integers.insert(values_.integers.end(), static_cast<size_t>(count), value);
            });
        return;
      default:
        break;
    }
    place_.Refuse("values in the encoding " + NameOf(encoding) + " are not supported" + kRewrite);
  }

  void ReadIndices(PageBytes bytes, uint64_t n) {
    if (!has_dictionary_) place_.Broken("a page refers to a missing dictionary");
    if (dictionary_size_ == 0) place_.Broken("a page refers to an empty dictionary");
    const auto width = bytes.Value<uint8_t>("dictionary indices");
    const auto expand = [&](const auto& dictionary, auto& to) {
      budget_.Take(n * sizeof(dictionary[0]), place_);
      HybridReader(bytes.rest(), width, place_, "dictionary indices")
          .Read(n, dictionary_size_ - 1, [&](uint32_t index, uint64_t count) {
            to.insert(to.end(), static_cast<size_t>(count), dictionary[index]);
          });
    };
    switch (leaf_.type) {
      case ParquetType::kByteArray:
        return expand(dictionary_.strings, values_.strings);
      case ParquetType::kFloat:
      case ParquetType::kDouble:
        return expand(dictionary_.doubles, values_.doubles);
      default:
        return expand(dictionary_.integers, values_.integers);
    }
  }

  void ReadPlain(PageBytes bytes, uint64_t n, Values& to) {
    switch (leaf_.type) {
      case ParquetType::kBoolean: {
        const auto packed = bytes.Take((n + 7) / 8, "booleans");
        budget_.Take(n * sizeof(int64_t), place_);
        for (uint64_t i = 0; i < n; ++i) {
          const auto byte = std::to_integer<unsigned>(packed[static_cast<size_t>(i / 8)]);
          to.integers.push_back((byte >> (i % 8)) & 1);
        }
        return;
      }
      case ParquetType::kInt32:
        return ReadNumbers<int32_t>(bytes, n, to.integers);
      case ParquetType::kInt64:
        return ReadNumbers<int64_t>(bytes, n, to.integers);
      case ParquetType::kFloat:
        return ReadNumbers<float>(bytes, n, to.doubles);
      case ParquetType::kDouble:
        return ReadNumbers<double>(bytes, n, to.doubles);
      case ParquetType::kByteArray:
        return ReadStrings(bytes, n, to.strings);
      default:
        place_.Refuse("the physical type " + NameOf(leaf_.type) + " is not supported");
    }
  }

  template <class Stored, class T>
  void ReadNumbers(PageBytes bytes, uint64_t n, std::vector<T>& to) {
    PageBytes numbers(bytes.Take(n * sizeof(Stored), "numbers"), place_);
    budget_.Take(n * sizeof(T), place_);
    for (uint64_t i = 0; i < n; ++i) to.push_back(numbers.Value<Stored>("numbers"));
  }

  void ReadStrings(PageBytes bytes, uint64_t n, std::vector<std::string_view>& to) {
    // Every string has a length prefix, so the page's size limits their number.
    if (n > bytes.rest().size() / sizeof(uint32_t)) {
      place_.Broken("a page of " + std::to_string(bytes.rest().size()) + " bytes declares " +
                    std::to_string(n) + " strings");
    }
    budget_.Take(n * sizeof(std::string_view), place_);
    for (uint64_t i = 0; i < n; ++i) {
      const auto text = bytes.Take(bytes.Length("strings"), "strings");
      to.emplace_back(reinterpret_cast<const char*>(text.data()), text.size());
      if (IsValidUtf8(to.back())) continue;
      if (leaf_.is_text) place_.Broken("a string is not UTF-8");
      place_.Refuse(
          "it has bytes that are not text; remove the column from data.columns or the file");
    }
  }

  // Finds where rows begin and checks that there are n_rows of them.
  void IndexRows(int64_t n_rows) {
    const bool is_flat = leaf_.max_repetition == 0;
    int64_t found = is_flat ? n_entries_ : 0;
    for (const uint8_t level : out_.repetitions) found += level == 0 ? 1 : 0;
    if (found != n_rows || (!is_flat && n_rows > 0 && out_.repetitions[0] != 0)) {
      place_.Broken("its pages have " + std::to_string(found) + " of " + std::to_string(n_rows) +
                    " rows");
    }
    const auto slots = static_cast<uint64_t>(n_rows) + 1;
    const auto n_entries = static_cast<size_t>(n_entries_);
    if (!is_flat) {
      budget_.Take(slots * sizeof(uint32_t), place_);
      out_.row_entries.reserve(static_cast<size_t>(slots));
    }
    if (leaf_.max_definition > 0) {
      budget_.Take(slots * sizeof(uint32_t), place_);
      out_.row_values.reserve(static_cast<size_t>(slots));
    }
    if (leaf_.max_definition == 0) return;  // a list has at least one level: flat, without nulls
    uint32_t n_present = 0;
    for (size_t i = 0; i < n_entries; ++i) {
      if (is_flat || out_.repetitions[i] == 0) {
        if (!is_flat) out_.row_entries.push_back(static_cast<uint32_t>(i));
        out_.row_values.push_back(n_present);
      }
      n_present += out_.definitions[i] == leaf_.max_definition ? 1 : 0;
    }
    if (!is_flat) out_.row_entries.push_back(static_cast<uint32_t>(n_entries));
    out_.row_values.push_back(n_present);
  }

  const ParquetLeaf& leaf_;
  ParquetCodec codec_;
  const ParquetPlace& place_;
  DecodeBudget& budget_;
  DecodedColumn out_;
  Values values_;
  Values dictionary_;
  bool has_dictionary_ = false;
  uint32_t dictionary_size_ = 0;
  int64_t n_entries_ = 0;
};

// The bytes of a chunk's pages, its dictionary first.
std::span<const std::byte> ChunkBytes(std::span<const std::byte> file, size_t data_end,
                                      const ColumnChunk& chunk, const ParquetPlace& place) {
  int64_t begin = chunk.data_offset;
  // Old writers store 0 for an absent dictionary.
  if (chunk.dictionary_offset && *chunk.dictionary_offset > 0 && *chunk.dictionary_offset < begin) {
    begin = *chunk.dictionary_offset;
  }
  if (begin < 0 || chunk.compressed_bytes < 0 || static_cast<uint64_t>(begin) > data_end ||
      static_cast<uint64_t>(chunk.compressed_bytes) > data_end - static_cast<uint64_t>(begin)) {
    place.Broken("its pages, " + std::to_string(chunk.compressed_bytes) + " bytes from byte " +
                 std::to_string(begin) + ", are not before the footer");
  }
  return file.subspan(static_cast<size_t>(begin), static_cast<size_t>(chunk.compressed_bytes));
}

}  // namespace

void DecodeBudget::Take(uint64_t bytes, const ParquetPlace& place) {
  if (bytes > static_cast<uint64_t>(limit_ - taken_)) {
    place.Refuse("the row group takes more than " + std::to_string(limit_) +
                 " bytes of memory; rewrite the file with fewer rows in a row group, for example "
                 "with pyarrow.parquet.write_table(table, path, row_group_size=1000)");
  }
  taken_ += static_cast<int64_t>(bytes);
}

std::string RefusalOf(const ColumnChunk& chunk) {
  if (chunk.is_encrypted) return "it is encrypted; write it without encryption";
  if (chunk.is_elsewhere) return "its values are in another file, which is not supported";
  if (!IsCodecRead(chunk.codec)) {
    return "its compression " + NameOf(chunk.codec) + " is not supported" + kRewrite;
  }
  for (const ParquetEncoding encoding : chunk.encodings) {
    if (!IsEncodingRead(encoding)) {
      return "its encoding " + NameOf(encoding) + " is not supported" + kRewrite;
    }
  }
  return "";
}

DecodedColumn DecodeColumn(std::span<const std::byte> file, size_t data_end,
                           const ColumnChunk& chunk, const ParquetLeaf& leaf, int64_t n_rows,
                           const ParquetPlace& place, DecodeBudget& budget) {
  // Entries and values are counted in 32 bits, the format's own limit for a page.
  if (chunk.n_values < 0 || chunk.n_values > std::numeric_limits<int32_t>::max()) {
    place.Refuse("it has " + std::to_string(chunk.n_values) + " values in one row group");
  }
  return ChunkDecoder(leaf, chunk.codec, place, budget)
      .Decode(ChunkBytes(file, data_end, chunk, place), chunk.n_values, n_rows);
}

}  // namespace tandem::training
