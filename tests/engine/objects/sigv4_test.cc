#include "engine/objects/sigv4.h"

#include <gtest/gtest.h>

namespace tandem::engine {
namespace {

constexpr const char* kEmptySha256 =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string SignatureOf(const SigV4Request& request, const ObjectKeys& keys,
                        const SigV4Scope& scope) {
  const std::string text = SigV4Authorization(request, keys, scope);
  return text.substr(text.rfind('=') + 1);
}

// The examples of Amazon's "Signature Calculations for the Authorization Header" of S3.
class S3Vectors : public ::testing::Test {
 protected:
  std::string Sign(SigV4Request request, const std::string& payload = kEmptySha256) const {
    request.payload_sha256 = payload;
    request.fields.emplace_back("host", "examplebucket.s3.amazonaws.com");
    request.fields.emplace_back("x-amz-content-sha256", payload);
    request.fields.emplace_back("x-amz-date", scope_.time);
    return SignatureOf(request, keys_, scope_);
  }

  const ObjectKeys keys_{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
  const SigV4Scope scope_{"20130524T000000Z", "us-east-1", "s3"};
};

TEST_F(S3Vectors, GetOfARange) {
  EXPECT_EQ(Sign({"GET", "/test.txt", {}, {{"range", "bytes=0-9"}}, ""}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST_F(S3Vectors, PutOfAnObjectWhoseKeyIsEncoded) {
  EXPECT_EQ(Sign({"PUT",
                  "/" + EncodedKey("test$file.text"),
                  {},
                  {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                   {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                  ""},
                 "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST_F(S3Vectors, ParameterWithoutAValue) {
  EXPECT_EQ(Sign({"GET", "/", {{"lifecycle", ""}}, {}, ""}),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST_F(S3Vectors, ParametersInAnotherOrder) {
  EXPECT_EQ(Sign({"GET", "/", {{"prefix", "J"}, {"max-keys", "2"}}, {}, ""}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

// Amazon's general test suite of Signature Version 4.
class SuiteVectors : public ::testing::Test {
 protected:
  std::string Sign(SigV4Request request) const {
    request.payload_sha256 = kEmptySha256;
    request.fields.emplace_back("host", "example.amazonaws.com");
    request.fields.emplace_back("x-amz-date", scope_.time);
    return SignatureOf(request, keys_, scope_);
  }

  const ObjectKeys keys_{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
  const SigV4Scope scope_{"20150830T123600Z", "us-east-1", "service"};
};

TEST_F(SuiteVectors, GetVanilla) {
  EXPECT_EQ(Sign({"GET", "/", {}, {}, ""}),
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
}

TEST_F(SuiteVectors, PostVanilla) {
  EXPECT_EQ(Sign({"POST", "/", {}, {}, ""}),
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
}

TEST_F(SuiteVectors, GetVanillaQueryOrderKeyCase) {
  EXPECT_EQ(Sign({"GET", "/", {{"Param2", "value2"}, {"Param1", "value1"}}, {}, ""}),
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
}

TEST(SigV4, TheHeadNamesKeyScopeAndFields) {
  const std::string text =
      SigV4Authorization({"GET", "/", {}, {{"host", "h"}, {"a-field", " two   words "}}, "x"},
                         {"KEY", "SECRET", ""}, {"20150830T123600Z", "eu-central-1", "s3"});
  EXPECT_EQ(text.substr(0, text.rfind('=')),
            "AWS4-HMAC-SHA256 Credential=KEY/20150830/eu-central-1/s3/aws4_request,"
            "SignedHeaders=a-field;host,Signature");
  EXPECT_EQ(text.find("SECRET"), std::string::npos);
}

TEST(SigV4, ValuesAreTrimmed) {
  EXPECT_EQ(CanonicalRequest({"GET", "/", {}, {{"host", "h"}, {"a-field", " two   words "}}, "x"}),
            "GET\n/\n\na-field:two words\nhost:h\n\na-field;host\nx");
}

TEST(SigV4, KeysKeepTheirSlashes) { EXPECT_EQ(EncodedKey("a b/ü/c+d/"), "a%20b/%C3%BC/c%2Bd/"); }

}  // namespace
}  // namespace tandem::engine
