// Hostile files: each is refused with one line that names the place. Whatever sizes a file claims,
// the reader neither crashes nor allocates for them. In the dev preset, AddressSanitizer checks
// every read.

#include <gtest/gtest.h>

#include <random>

#include "tests/training/data/parquet/crafted_file.h"
#include "tests/training/data/parquet/read_rows.h"

namespace tandem::training {
namespace {

// Bounds the memory that a hostile file may claim.
ParquetOptions Bounded() {
  ParquetOptions options;
  options.row_group_bytes = 1 << 20;
  return options;
}

struct HostileCase {
  const char* what;
  std::string bytes;
  const char* part;  // of the message
  ErrorCode code = ErrorCode::kDataLoss;
};

void ExpectRefused(const std::vector<HostileCase>& cases) {
  for (const HostileCase& hostile : cases) {
    SCOPED_TRACE(hostile.what);
    const auto [what, code] = FaultOf(hostile.bytes, {}, Bounded());
    EXPECT_EQ(code, hostile.code) << what;
    EXPECT_NE(what.find(hostile.part), std::string::npos) << what;
    EXPECT_TRUE(what.starts_with("test.parquet: ")) << what;
    EXPECT_LT(what.size(), 1000u);
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  }
}

std::string Footer(const std::string& footer) {
  return "PAR1" + footer + FourBytes(static_cast<uint32_t>(footer.size())) + "PAR1";
}
std::string Schema(const std::vector<ThriftFields>& elements) {
  return CraftedFile(elements, {}, 0);
}

TEST(HostileParquet, Containers) {
  ExpectRefused({
      {"empty", "", "too short"},
      {"one magic", "PAR1", "too short"},
      {"another file", std::string(100, 'x'), "not a Parquet file"},
      {"cut off", FileText(FixtureDir() / "chat--none.parquet").substr(0, 2000),
       "not a Parquet file"},
      {"footer beyond the file", "PAR1" + FourBytes(1000) + "PAR1", "a footer of 1000 bytes"},
      {"footer of 4 GiB", "PAR1" + FourBytes(0xFFFFFFFF) + "PAR1", "a footer of 4294967295 bytes"},
      {"no footer", Footer(""), "byte 0 of the footer: it ends here"},
      {"empty footer", Footer(ThriftFields().str()), "no schema"},
      {"footer without rows", Footer(ThriftFields().Structs(2, {Root(0)}).str()),
       "has no number of rows"},
      {"footer that ends early", Footer(ThriftFields().I32(1, 1).str().substr(0, 2)),
       "it ends here"},
      {"encrypted", "PAR1xxxxxxxxPARE", "encrypted", ErrorCode::kUnsupported},
  });
}

TEST(HostileParquet, Thrift) {
  const std::string list_of_all = std::string("\x09\x04\xFC", 3) + ThriftFields::Varint(1u << 31);
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "\x1C";  // structs within structs
  std::string lists(1, '\x19');
  for (int i = 0; i < 100000; ++i) lists += "\x19";  // lists of one list
  std::string number(1, '\x16');
  ExpectRefused({
      {"a list larger than the file", Footer(list_of_all), "a list of 2147483648 items"},
      {"structs without end", Footer(deep), "nested more than 32 deep"},
      {"lists without end", Footer(lists), "nested more than 32 deep"},
      {"a number without end", Footer(number + std::string(20, '\xFF')), "more than 64 bits"},
      {"a number of 32 bits that is larger",
       Footer(
           ThriftFields().Structs(2, {ThriftFields().I32(3, int64_t{1} << 40).Text(4, "x")}).str()),
       "beyond 32 bits"},
      {"a type that is not", Footer("\x1E"), "type 14 is unknown"},
      {"a field number that is not", Footer(std::string("\x05\x00\x00", 3)), "an invalid number"},
      {"a string beyond the file", Footer("\x18\x7F"), "127 bytes are declared"},
      {"a map beyond the file", Footer("\x1B\x7F\x88"), "a map has more items"},
      {"rows as a string", Footer(ThriftFields().Text(3, "x").str()), "field 3 is of type 8"},
  });
}

TEST(HostileParquet, Schemas) {
  std::vector<ThriftFields> deep{Root(1)};
  for (int i = 0; i < 80; ++i) deep.push_back(Group("g", kOptional, 1));
  deep.push_back(Text("x", kOptional));
  std::vector<ThriftFields> long_names{Root(1)};
  for (int i = 0; i < 40; ++i) long_names.push_back(Group(std::string(200, 'n'), kOptional, 1));
  long_names.push_back(Text("x", kOptional));
  ThriftFields value_with_children = Text("x", kOptional);
  value_with_children.I32(5, 1);
  ExpectRefused({
      {"a group without its children", Schema({Root(2), Text("x", kRequired)}), "2 children"},
      {"a group of children of others",
       Schema({Root(2), Group("g", kRequired, 1), Text("x", kRequired)}), "ends within a group"},
      {"elements outside", Schema({Root(0), Text("x", kRequired)}), "outside its tree"},
      {"children of a column", Schema({Root(1), value_with_children, Text("y", kRequired)}),
       "has children"},
      {"a negative number of children", Schema({Root(1), Group("g", kRequired, -1)}),
       "-1 children"},
      {"a group of nothing", Schema({Root(1), Group("g", kRequired, 0)}), "0 children"},
      {"a root that is a column", Schema({Text("x", kRequired)}), "root is a column"},
      {"a name that is not text", Schema({Root(1), Text("\xFF", kRequired)}), "not UTF-8"},
      {"no such repetition", Schema({Root(1), Text("x", 7)}), "unknown repetition 7"},
      {"two of a name", Schema({Root(2), Text("x", kRequired), Text("x", kRequired)}), "'x'",
       ErrorCode::kUnsupported},
      {"too deep", Schema(deep), "64 deep", ErrorCode::kUnsupported},
      {"names too long", Schema(long_names), "too long a name", ErrorCode::kUnsupported},
      {"a column that no row group has", Schema({Root(1), Text("x", kRequired)}),
       "row group 0: 0 columns, but the schema has 1"},
      {"a LIST of a column",
       CraftedFile({Root(1), Group("l", kOptional, 1, kListWord), Text("x", kOptional)}, {{}}, 0),
       "LIST", ErrorCode::kUnsupported},
      {"a MAP",
       CraftedFile({Root(1), Group("m", kOptional, 1, kMapWord), Text("x", kOptional)}, {{}}, 0),
       "MAP", ErrorCode::kUnsupported},
      {"a type that is not", CraftedFile({Root(1), Value("x", kRequired, 9)}, {{.type = 9}}, 0),
       "number 9", ErrorCode::kUnsupported},
      {"another type", CraftedFile({Root(1), Text("x", kRequired)}, {{.type = 1}}, 0),
       "is of type INT32"},
  });
}

// A file of one column of required strings.
std::string OfStrings(CraftedColumn column, int64_t n_rows) {
  return CraftedFile({Root(1), Text("x", kRequired)}, {std::move(column)}, n_rows);
}
std::string OfOptional(const std::string& pages, int64_t n) {
  return CraftedFile({Root(1), Text("x", kOptional)}, {{.n_values = n, .pages = pages}}, n);
}
std::string OfNumbers(const std::string& pages, int64_t n) {
  return CraftedFile({Root(1), Value("x", kRequired, 2)},
                     {{.type = 2, .n_values = n, .pages = pages}}, n);
}

TEST(HostileParquet, RowGroups) {
  const std::string page = DataPage(1, Strings({"x"}));
  ExpectRefused({
      {"pages beyond the file", OfStrings({.n_values = 1, .pages = page, .offset_error = 1}, 1),
       "are not before the footer"},
      {"pages before the file", OfStrings({.n_values = 1, .pages = page, .offset_error = -100}, 1),
       "are not before the footer"},
      {"fewer values than promised", OfStrings({.n_values = 2, .pages = page}, 2),
       "row group 0: column 'x': its pages have 1 of 2 values"},
      {"more values than promised",
       OfStrings({.n_values = 1, .pages = DataPage(2, Strings({"x", "y"}))}, 1),
       "more than the 1 values"},
      {"other rows than promised", OfStrings({.n_values = 1, .pages = page}, 2), "1 of 2 rows"},
      {"values below nothing", OfStrings({.n_values = -1, .pages = page}, 1), "-1 values",
       ErrorCode::kUnsupported},
      {"rows below nothing", OfStrings({.n_values = 0, .pages = page}, -1), "-1, is invalid"},
      {"more values than numbers", OfStrings({.n_values = int64_t{1} << 40, .pages = page}, 1),
       "1099511627776 values", ErrorCode::kUnsupported},
      {"no such codec", OfStrings({.n_values = 1, .pages = page, .codec = 99}, 1), "number 99",
       ErrorCode::kUnsupported},
  });
}

TEST(HostileParquet, Pages) {
  const std::string body = Strings({"x"});
  const auto page = [&](int64_t bytes, int64_t compressed) {
    return ThriftFields()
               .I32(1, 0)
               .I32(2, bytes)
               .I32(3, compressed)
               .Struct(5, ThriftFields().I32(1, 1).I32(2, 0).I32(3, 3).I32(4, 3))
               .str() +
           body;
  };
  const auto v2 = [&](int64_t repetitions, int64_t definitions) {
    return ThriftFields()
               .I32(1, 3)
               .I32(2, 3)
               .I32(3, 3)
               .Struct(8, ThriftFields()
                              .I32(1, 1)
                              .I32(4, 0)
                              .I32(5, definitions)
                              .I32(6, repetitions)
                              .Bool(7, false))
               .str() +
           "abc";
  };
  const auto strings = [](const std::string& pages, int codec = 0) {
    return OfStrings({.n_values = 1, .pages = pages, .codec = codec}, 1);
  };
  ExpectRefused({
      {"larger than the column", strings(page(5, 500)), "a page of 500 bytes"},
      {"negative", strings(page(-5, 5)), "negative size"},
      {"negative when compressed", strings(page(5, -5)), "negative size"},
      {"not what it promises", strings(page(6, 5)), "declares 6"},
      {"no snappy", strings(page(5, 5), 1), "does not decompress (SNAPPY)"},
      {"no gzip", strings(page(5, 5), 2), "does not decompress (GZIP)"},
      {"no zstd", strings(page(5, 5), 6), "does not decompress (ZSTD)"},
      {"two gigabytes from five bytes", strings(page(0x7FFFFFFF, 5), 6),
       "more than 1048576 bytes of memory", ErrorCode::kUnsupported},
      {"data without a header of data", strings(ThriftFields().I32(1, 0).I32(2, 0).I32(3, 0).str()),
       "no description of its content"},
      {"a page of another kind", strings(ThriftFields().I32(1, 9).I32(2, 0).I32(3, 0).str()),
       "type 9", ErrorCode::kUnsupported},
      {"levels of version 2 beyond the page", strings(v2(2, 2)), "definition levels"},
      {"levels of version 2 below nothing", strings(v2(-1, 0)), "negative size"},
      {"an empty page", strings(DataPage(1, "")), "1 strings"},
      {"a string beyond the page", strings(DataPage(1, FourBytes(100) + "x")),
       "100 bytes are declared"},
      {"a string of 4 GiB", strings(DataPage(1, FourBytes(0xFFFFFFFF))),
       "4294967295 bytes are declared"},
      {"strings that nobody wrote",
       OfStrings({.n_values = 0x7FFFFFFF, .pages = DataPage(0x7FFFFFFF, body)}, 0x7FFFFFFF),
       "2147483647 strings"},
      {"numbers that nobody wrote", OfNumbers(DataPage(0x7FFFFFFF, body), 0x7FFFFFFF), "numbers"},
      {"not UTF-8", strings(DataPage(1, Strings({"\xC3"}))), "not UTF-8"},
      {"an encoding that is not", strings(DataPage(1, body, 77)), "number 77",
       ErrorCode::kUnsupported},
      {"booleans' encoding for strings", strings(DataPage(1, body, 3)), "RLE",
       ErrorCode::kUnsupported},
  });
}

TEST(HostileParquet, Dictionaries) {
  const std::string dictionary = DictionaryPage(2, Strings({"x", "y"}));
  const std::string one_run = std::string("\x08\x02", 2);  // 8 bits each, a run of one
  const auto strings = [](const std::string& pages, int n = 1) {
    return OfStrings({.n_values = n, .pages = pages}, n);
  };
  ExpectRefused({
      {"none", strings(DataPage(1, one_run + '\0', 8)), "missing dictionary"},
      {"two", strings(dictionary + dictionary + DataPage(1, one_run + '\0', 8)),
       "two dictionaries"},
      {"behind the values",
       strings(DataPage(1, Strings({"x"})) + dictionary + DataPage(1, one_run + '\0', 8), 2),
       "after values"},
      {"empty", strings(DictionaryPage(0, "") + DataPage(1, one_run + '\0', 8)),
       "empty dictionary"},
      {"index beyond it", strings(dictionary + DataPage(1, one_run + '\2', 8)), "hold 2, beyond 1"},
      {"no width", strings(dictionary + DataPage(1, "", 8)), "dictionary indices"},
      {"a width of 33 bits", strings(dictionary + DataPage(1, "\x21\x02\x01", 8)),
       "width of 33 bits"},
      {"a width of 255 bits", strings(dictionary + DataPage(1, "\xFF\x02\x01", 8)),
       "width of 255 bits"},
      {"no indices", strings(dictionary + DataPage(1, "\x01", 8)), "end early"},
      {"a run without its value", strings(dictionary + DataPage(1, "\x08\x02", 8)), "end early"},
      {"groups without bytes", strings(dictionary + DataPage(1, "\x08\x03", 8)), "end early"},
      {"an empty run", strings(dictionary + DataPage(1, std::string("\x08\x00\x00", 3), 8)),
       "empty run"},
      {"a run without end", strings(dictionary + DataPage(1, "\x08\xFF\xFF\xFF\xFF\xFF\xFF", 8)),
       "2^32"},
      {"entries that nobody wrote",
       strings(DictionaryPage(0x7FFFFFFF, Strings({"x"})) + DataPage(1, one_run, 8)),
       "2147483647 strings"},
      {"two billion from one run",
       strings(
           dictionary + DataPage(0x7FFFFFFF, "\x08\xFE\xFF\xFF\xFF\x0F" + std::string(1, '\0'), 8),
           0x7FFFFFFF),
       "more than 1048576 bytes of memory", ErrorCode::kUnsupported},
  });
}

TEST(HostileParquet, Levels) {
  const std::string run_of_all = FourBytes(6) + "\xFE\xFF\xFF\xFF\x0F" + std::string(1, '\0');
  const std::vector<ThriftFields> list_of_two{Root(1), Group("l", kOptional, 1, kListWord),
                                              Group("array", kRepeated, 2), Text("a", kRequired),
                                              Text("b", kRequired)};
  const auto two = [&](const std::string& a, int n_a, const std::string& b, int n_b, int n_rows) {
    return CraftedFile(list_of_two,
                       {{.n_values = n_a, .pages = DataPage(n_a, a)},
                        {.n_values = n_b, .pages = DataPage(n_b, b)}},
                       n_rows);
  };
  const std::string one = Levels({0}) + Levels({2}) + Strings({"x"});
  const std::string both = Levels({0, 1}) + Levels({2, 2}) + Strings({"x", "y"});
  ExpectRefused({
      {"above what the schema has", OfOptional(DataPage(1, Levels({2}) + Strings({"x"})), 1),
       "hold 2, beyond 1"},
      {"longer than the page", OfOptional(DataPage(1, FourBytes(100)), 1), "definition levels"},
      {"shorter than the values", OfOptional(DataPage(2, Levels({1}) + Strings({"x", "y"})), 2),
       "end early"},
      {"bit-packed of old", OfOptional(DataPage(1, Levels({1}) + Strings({"x"}), 0, 4), 1),
       "BIT_PACKED", ErrorCode::kUnsupported},
      {"two billion nulls from one run", OfOptional(DataPage(0x7FFFFFFF, run_of_all), 0x7FFFFFFF),
       "more than 1048576 bytes of memory", ErrorCode::kUnsupported},
      {"a row that begins within one",
       two(Levels({1}) + Levels({2}) + Strings({"x"}), 1, one, 1, 1), "of 1 rows"},
      {"lists of two lengths", two(both, 2, one, 1, 1), "contradict"},
      {"lists of two lengths, the other way", two(one, 1, both, 2, 1), "contradict"},
      {"one list null, the other not", two(Levels({0}) + Levels({0}), 1, one, 1, 1), "contradict"},
      {"one list null, the other empty",
       two(Levels({0}) + Levels({0}), 1, Levels({0}) + Levels({1}), 1, 1), "contradict"},
      {"one list empty, the other not", two(one, 1, Levels({0}) + Levels({1}), 1, 1), "contradict"},
      {"an empty list that goes on",
       two(Levels({0, 1}) + Levels({1, 2}) + Strings({"x"}), 2, both, 2, 1), "contradict"},
  });
}

// A damaged file gives rows or one Error, and never takes much memory.
TEST(HostileParquet, RandomDamage) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(FixtureDir())) {
    if (entry.path().extension() != ".parquet") continue;
    std::string text = FileText(entry.path());
    if (text.size() < 8000) files.push_back(std::move(text));
  }
  std::sort(files.begin(), files.end());
  ASSERT_GE(files.size(), 10u);
  std::mt19937 random(11);
  int n_read = 0;
  int n_refused = 0;
  for (int n = 0; n < 3000; ++n) {
    std::string bytes = files[random() % files.size()];
    const auto n_changes = 1 + random() % 4;
    for (unsigned i = 0; i < n_changes; ++i)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto [what, code] = FaultOf(bytes, {}, Bounded());
    (what.empty() ? n_read : n_refused) += 1;
    if (what.empty()) continue;
    EXPECT_TRUE(code == ErrorCode::kDataLoss || code == ErrorCode::kUnsupported) << what;
    EXPECT_LT(what.size(), 1000u);
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  }
  EXPECT_GT(n_read, 100);
  EXPECT_GT(n_refused, 1000);
}

TEST(HostileParquet, EveryPlaceToCutAFile) {
  const std::string whole = FileText(FixtureDir() / "required--none.parquet");
  for (size_t n = 0; n < whole.size(); ++n) {
    EXPECT_EQ(FaultOf(whole.substr(0, n), {}, Bounded()).second, ErrorCode::kDataLoss) << n;
  }
}

TEST(HostileParquet, ChecksumsTellOneChangedBit) {
  std::string bytes = FileText(FixtureDir() / "flat--checksums-v1.parquet");
  const size_t at = bytes.find("river");
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);

  EXPECT_NE(FaultOf(bytes).first.find("checksum"), std::string::npos);
}

}  // namespace
}  // namespace tandem::training
