#include "server/http/syntax/multipart_parser.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "server/http/syntax/header_params.h"

namespace tandem::server {
namespace {

struct Part {
  std::string name;
  std::optional<std::string> filename;
  std::string bytes;
  bool has_ended = false;
  bool operator==(const Part&) const = default;
};

struct Reading {
  std::vector<Part> parts;
  std::optional<std::string> fault;
  bool operator==(const Reading&) const = default;
};

class Reader {
 public:
  explicit Reader(std::string_view boundary)
      : parser_(boundary, {[this](PartHead head) {
                             reading_.parts.push_back({head.name, head.filename, "", false});
                           },
                           [this](std::string_view bytes) { reading_.parts.back().bytes += bytes; },
                           [this] { reading_.parts.back().has_ended = true; }}) {}

  void Feed(std::string_view bytes) { parser_.Feed(bytes); }
  Reading End() {
    parser_.Finish();
    reading_.fault = parser_.fault();
    return reading_;
  }

 private:
  Reading reading_;
  MultipartParser parser_;
};

Reading Read(std::string_view body, std::string_view boundary = "abc") {
  Reader reader(boundary);
  reader.Feed(body);
  return reader.End();
}

// Cuts the body in two at every place, and byte by byte.
void ExpectSameHoweverCut(const std::string& body, const Reading& expected) {
  for (size_t cut = 0; cut <= body.size(); ++cut) {
    Reader reader("abc");
    reader.Feed(std::string_view(body).substr(0, cut));
    reader.Feed(std::string_view(body).substr(cut));
    ASSERT_EQ(reader.End(), expected) << "cut at " << cut << " of: " << body;
  }
  Reader reader("abc");
  for (const char& c : body) reader.Feed({&c, 1});
  ASSERT_EQ(reader.End(), expected) << body;
}

std::string Head(const std::string& disposition) {
  return "Content-Disposition: form-data; " + disposition + "\r\n\r\n";
}

TEST(MultipartParser, TakesFormsApartHoweverTheyAreCut) {
  const std::string odd_bytes =
      std::string("a\r\n--ab\r\n--abd\r\n--abcx\r\r\n\r--abc--abc\n--abc\r\n--abc--x\r\n-") +
      std::string("\0\xff\r\n--abc x", 11);
  const std::string body =
      "preamble\r\n--abx\r\n--abc\r\n" + Head("name=\"purpose\"") + "fine-tune\r\n--abc \t\r\n" +
      "content-DISPOSITION:form-data;name=file ; filename=\"x.jsonl\"\r\n"
      "Content-Type: text/plain\r\n\r\n" +
      odd_bytes + "\r\n--abc\r\n" + Head("name=empty") + "\r\n--abc--\r\nepilogue\r\n--abc\r\n";
  const Reading expected{{{"purpose", std::nullopt, "fine-tune", true},
                          {"file", "x.jsonl", odd_bytes, true},
                          {"empty", std::nullopt, "", true}},
                         std::nullopt};

  EXPECT_EQ(Read(body), expected);
  ExpectSameHoweverCut(body, expected);
}

TEST(MultipartParser, TheEndNeedsNoLineBehindIt) {
  const Reading expected{{{"a", std::nullopt, "1", true}}, std::nullopt};
  const std::string form = "--abc\r\n" + Head("name=a") + "1\r\n--abc--";
  for (const char* end : {"", "\r", "\r\n", " ", " \t\r\n", "\r\nmore"}) {
    ExpectSameHoweverCut(form + end, expected);
  }
  ExpectSameHoweverCut("--abc--", {});
}

TEST(MultipartParser, FaultsAreTheSameHoweverCut) {
  const std::string form = "--abc\r\n" + Head("name=a") + "1";
  const struct {
    std::string body;
    const char* part_of_fault;
  } cases[] = {
      {"", "closing boundary"},
      {"nothing of the kind", "closing boundary"},
      {form, "closing boundary"},
      {form + "\r\n--abc", "closing boundary"},
      {form + "\r\n--abc-", "closing boundary"},
      {form + "\n--abc--\n", "closing boundary"},
      {form + "\r\n--abc\r\n", "closing boundary"},
      {"--abc\r\n\r\nx\r\n--abc--", "needs 'content-disposition"},
      {"--abc\r\nContent-Type: a\r\n\r\nx\r\n--abc--", "needs 'content-disposition"},
      {"--abc\r\nno header\r\n\r\nx\r\n--abc--", "needs 'content-disposition"},
      {"--abc\r\nContent-Disposition: attachment; name=a\r\n\r\n\r\n--abc--", "form-data"},
      {"--abc\r\n" + Head("filename=a") + "\r\n--abc--", "with a name"},
      {"--abc\r\n" + Head("name=a; name=b") + "\r\n--abc--", "with a name"},
      {"--abc\r\n" + Head("name=\"a") + "\r\n--abc--", "with a name"},
      {"--abc\r\nContent-Disposition: form-data; name=a\r\nContent-Disposition: form-data; "
       "name=b\r\n\r\n\r\n--abc--",
       "with a name"},
      {"--abc\r\nContent-Disposition: form-data; name=\"a\nb\"\r\n\r\n\r\n--abc--", "with a name"},
      {"--abc\r\nContent-Transfer-Encoding: BASE64\r\n" + Head("name=a") + "eA==\r\n--abc--",
       "Content-Transfer-Encoding"},
  };
  for (const auto& one : cases) {
    const Reading reading = Read(one.body);
    ASSERT_TRUE(reading.fault) << one.body;
    EXPECT_NE(reading.fault->find(one.part_of_fault), std::string::npos) << *reading.fault;
    ExpectSameHoweverCut(one.body, reading);
  }
}

TEST(MultipartParser, PartsAndHeadsAreBounded) {
  const std::string part = "--abc\r\n" + Head("name=a") + "1\r\n";
  std::string body;
  for (size_t i = 0; i < MultipartParser::kMaxParts; ++i) body += part;
  EXPECT_EQ(Read(body + "--abc--").fault, std::nullopt);
  EXPECT_EQ(Read(body + part + "--abc--").fault, "the form has more than 64 parts");

  const std::string head = "Content-Disposition: form-data; name=a\r\nX: ";
  const auto with_head_of = [&](size_t n) {
    return "--abc\r\n" + head + std::string(n - head.size() - 4, 'x') + "\r\n\r\n1\r\n--abc--";
  };
  EXPECT_EQ(Read(with_head_of(MultipartParser::kMaxHeadBytes)).fault, std::nullopt);
  EXPECT_EQ(Read(with_head_of(MultipartParser::kMaxHeadBytes + 1)).fault,
            "the head of a part is longer than 8192 bytes");
}

TEST(MultipartParser, NamesComeAsTheyWereMeant) {
  const struct {
    const char* params;
    const char* filename;
  } cases[] = {
      {"filename=\"a \\\"b\\\" \\\\c.txt\"", "a \"b\" \\c.txt"},
      {"filename=\"C:\\dir\\x.txt\"", "C:\\dir\\x.txt"},
      {"filename=\"\xc3\xa4;=.txt\"", "\xc3\xa4;=.txt"},
      {"filename=\"fallback\"; filename*=UTF-8''%c3%A4%20b.txt", "\xc3\xa4 b.txt"},
      {"filename*=utf-8'en'%e2%82%ac; filename=x", "\xe2\x82\xac"},
      {"filename*=ISO-8859-1''%e4.txt", "\xc3\xa4.txt"},
      {"filename=x; filename*=UTF-8''%zz", "x"},
      {"filename=x; filename*=UTF-16''a", "x"},
      {"filename=\"\"", ""},
      {"FileName = plain.txt ;", "plain.txt"},
  };
  for (const auto& one : cases) {
    const Reading reading =
        Read("--abc\r\n" + Head("name=file; " + std::string(one.params)) + "1\r\n--abc--");
    ASSERT_EQ(reading.fault, std::nullopt) << one.params;
    EXPECT_EQ(reading.parts[0].filename, one.filename) << one.params;
  }
}

TEST(MultipartParser, BoundariesOfContentTypes) {
  const auto boundary_of = [](std::string_view type) { return ParseFormType(type).boundary; };
  EXPECT_EQ(boundary_of("multipart/form-data; boundary=abc"), "abc");
  EXPECT_EQ(boundary_of("Multipart/Form-Data ; charset=utf-8; Boundary=\"a b:c\""), "a b:c");
  EXPECT_EQ(boundary_of("multipart/form-data; boundary=" + std::string(70, 'x')),
            std::string(70, 'x'));
  EXPECT_EQ(boundary_of("multipart/form-data; boundary=" + std::string(71, 'x')), std::nullopt);
  EXPECT_EQ(boundary_of("multipart/form-data"), std::nullopt);
  EXPECT_EQ(boundary_of("multipart/form-data; boundary="), std::nullopt);
  EXPECT_EQ(boundary_of("multipart/form-data; boundary=\"abc"), std::nullopt);
  EXPECT_EQ(boundary_of("multipart/form-data; boundary=\"abc \""), std::nullopt);
  EXPECT_EQ(boundary_of("multipart/form-data; boundary=\"a\xc3\xa4\""), std::nullopt);
  EXPECT_TRUE(ParseFormType("multipart/form-data; boundary=\"abc").is_form_data);
  EXPECT_FALSE(ParseFormType("multipart/mixed; boundary=abc").is_form_data);
  EXPECT_FALSE(ParseFormType("application/json").is_form_data);
  EXPECT_FALSE(ParseFormType("").is_form_data);
}

// Cutting random bytes differently changes nothing.
TEST(MultipartParser, RandomDamageIsReadTheSameHoweverCut) {
  std::mt19937 random(7);
  const std::string form = "--abc\r\n" + Head("name=a; filename=b") + "1\r\n--ab\r\n--abc\r\n" +
                           Head("name=c") + "2\r\n--abc--\r\n";
  const std::string alphabet = "\r\n-abc: ;=\"x";
  for (int round = 0; round < 3000; ++round) {
    std::string body = form;
    for (int i = 0; i < 3; ++i) {
      const size_t at = random() % body.size();
      const char c = alphabet[random() % alphabet.size()];
      if (random() % 3 == 0) {
        body.insert(at, 1, c);
      } else if (random() % 2 == 0) {
        body.erase(at, 1);
      } else {
        body[at] = c;
      }
    }
    Reader in_pieces("abc");
    for (size_t at = 0; at < body.size();) {
      const size_t n = 1 + random() % 9;
      in_pieces.Feed(std::string_view(body).substr(at, n));
      at += n;
    }
    ASSERT_EQ(in_pieces.End(), Read(body)) << "round " << round << ": " << body;
  }
}

}  // namespace
}  // namespace tandem::server
