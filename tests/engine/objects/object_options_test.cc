#include "engine/objects/object_options.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <map>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

class ObjectOptionsTest : public ::testing::Test {
 protected:
  ObjectOptionsTest() {
    std::string text = (fs::temp_directory_path() / "tandem-objects-XXXXXX").string();
    home_ = mkdtemp(text.data());
    variables_["HOME"] = home_.string();
  }
  ~ObjectOptionsTest() override { fs::remove_all(home_); }

  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories(home_ / ".aws");
    std::ofstream(home_ / ".aws" / name) << text;
  }

  ObjectOptions Read(const std::string& url = "s3://bucket/key") const {
    return ObjectOptionsFromEnvironment(*ParseObjectUrl(url), [this](const char* name) {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    });
  }

  std::string Refusal(const std::string& url = "s3://bucket/key") const {
    try {
      Read(url);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return {};
  }

  fs::path home_;
  std::map<std::string, std::string> variables_;
};

TEST_F(ObjectOptionsTest, WithoutAnythingRequestsAreAnonymous) {
  const ObjectOptions options = Read();

  EXPECT_TRUE(options.keys.empty());
  EXPECT_EQ(options.http.endpoint, "https://bucket.s3.us-east-1.amazonaws.com");
  EXPECT_TRUE(options.bucket_in_host);
}

TEST_F(ObjectOptionsTest, ADotInTheBucketStaysOutOfTheHost) {
  EXPECT_EQ(Read("s3://a.bucket/k").http.endpoint, "https://s3.us-east-1.amazonaws.com");
}

TEST_F(ObjectOptionsTest, TheEnvironmentWinsOverFiles) {
  Write("credentials", "[default]\naws_access_key_id = FILE\naws_secret_access_key = F\n");
  variables_["AWS_ACCESS_KEY_ID"] = "ENV";
  variables_["AWS_SECRET_ACCESS_KEY"] = "secret";
  variables_["AWS_SESSION_TOKEN"] = "session";
  variables_["AWS_REGION"] = "eu-central-1";
  variables_["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9000/";

  const ObjectOptions options = Read();

  EXPECT_EQ(options.keys.access_key_id, "ENV");
  EXPECT_EQ(options.keys.session_token, "session");
  EXPECT_EQ(options.region, "eu-central-1");
  EXPECT_EQ(options.http.endpoint, "http://127.0.0.1:9000");
  EXPECT_FALSE(options.bucket_in_host);
}

TEST_F(ObjectOptionsTest, ReadsAProfileOfBothFiles) {
  Write("credentials",
        "# comment\n[default]\naws_access_key_id = D\naws_secret_access_key = D\n"
        "[ team ]\r\naws_access_key_id=T\r\naws_secret_access_key = s=e/c+r \r\n");
  Write("config",
        "[profile team]\nregion = eu-west-1\ns3 =\n  region = no\nendpoint_url = "
        "https://s.example\n");
  variables_["AWS_PROFILE"] = "team";

  const ObjectOptions options = Read();

  EXPECT_EQ(options.keys.access_key_id, "T");
  EXPECT_EQ(options.keys.secret_access_key, "s=e/c+r");
  EXPECT_EQ(options.region, "eu-west-1");
  EXPECT_EQ(options.http.endpoint, "https://s.example");
}

TEST_F(ObjectOptionsTest, AnUnknownProfileIsNamed) {
  variables_["AWS_PROFILE"] = "team";
  EXPECT_NE(Refusal().find("'team'"), std::string::npos);
}

TEST_F(ObjectOptionsTest, HalfAPairOfKeysIsRefusedWithoutItsValue) {
  variables_["AWS_SECRET_ACCESS_KEY"] = "hush";
  const std::string message = Refusal();
  EXPECT_NE(message.find("AWS_ACCESS_KEY_ID"), std::string::npos);
  EXPECT_EQ(message.find("hush"), std::string::npos);
}

TEST_F(ObjectOptionsTest, AKeyWithALineBreakIsRefusedWithoutItsValue) {
  variables_["AWS_ACCESS_KEY_ID"] = "ID";
  variables_["AWS_SECRET_ACCESS_KEY"] = "hush\r\nX-Field: 1";
  const std::string message = Refusal();
  EXPECT_NE(message.find("one word"), std::string::npos);
  EXPECT_EQ(message.find("hush"), std::string::npos);
}

TEST_F(ObjectOptionsTest, ARegionThatIsAHostIsRefused) {
  variables_["AWS_REGION"] = "evil.example/";
  EXPECT_NE(Refusal().find("AWS_REGION"), std::string::npos);
}

TEST_F(ObjectOptionsTest, AnEndpointWithAPathIsRefused) {
  variables_["AWS_ENDPOINT_URL"] = "http://host/path";
  EXPECT_NE(Refusal().find("AWS_ENDPOINT_URL"), std::string::npos);
}

TEST_F(ObjectOptionsTest, NamesASourceOfKeysThatIsNotSupported) {
  Write("config", "[default]\nrole_arn = arn:aws:iam::1:role/x\n");
  EXPECT_EQ(Read().unsupported_source, "role_arn of the AWS profile");
}

TEST_F(ObjectOptionsTest, ReadsTheNestedSettingOfBodies) {
  EXPECT_EQ(Read().signs_bodies, std::nullopt);
  Write("config",
        "[default]\ns3 =\n  max_concurrent_requests = 20\n  payload_signing_enabled = True\n"
        "region = eu-west-1\n  payload_signing_enabled = false\n");
  EXPECT_EQ(Read().signs_bodies, true);
  EXPECT_EQ(Read().region, "eu-west-1");
  Write("config", "[default]\ns3 =\n\tpayload_signing_enabled=false\n");
  EXPECT_EQ(Read().signs_bodies, false);
  Write("config", "[default]\nsso =\n  payload_signing_enabled = true\n");
  EXPECT_EQ(Read().signs_bodies, std::nullopt);
  Write("config", "[default]\ns3 =\n  payload_signing_enabled = maybe\n");
  EXPECT_NE(Refusal().find("payload_signing_enabled"), std::string::npos);
}

TEST_F(ObjectOptionsTest, GoogleHasItsOwnKeysAndEndpoint) {
  variables_["AWS_ACCESS_KEY_ID"] = "A";
  variables_["AWS_SECRET_ACCESS_KEY"] = "A";
  variables_["AWS_ENDPOINT_URL"] = "http://127.0.0.1:9000";
  EXPECT_EQ(Read("gs://bucket/k").keys.access_key_id, "A");
  variables_["GS_ACCESS_KEY_ID"] = "G";
  variables_["GS_SECRET_ACCESS_KEY"] = "G";

  const ObjectOptions options = Read("gs://bucket/k");

  EXPECT_EQ(options.keys.access_key_id, "G");
  EXPECT_EQ(options.http.endpoint, "https://storage.googleapis.com");
  EXPECT_EQ(options.region, "auto");
}

TEST(ObjectUrlTest, ParsesBucketAndKey) {
  const auto url = ParseObjectUrl("gs://my-bucket/a/b c");
  ASSERT_TRUE(url);
  EXPECT_EQ(url->kind, StoreKind::kGcs);
  EXPECT_EQ(url->bucket, "my-bucket");
  EXPECT_EQ(url->key, "a/b c");
  EXPECT_EQ((*url / "d").Text(), "gs://my-bucket/a/b c/d");
  EXPECT_EQ((*ParseObjectUrl("s3://bucket") / "d").Text(), "s3://bucket/d");
  EXPECT_FALSE(ParseObjectUrl("org/name"));
  EXPECT_FALSE(ParseObjectUrl("/s3://bucket"));
}

TEST(ObjectUrlTest, RefusesBadNames) {
  for (const std::string text :
       {"s3://", "s3:///key", "s3://UPPER/key", "s3://a..b/key", "s3://-ab/key", "s3://b@c.d/key",
        "s3://bucket//key", "s3://bucket/a//b", "s3://bucket/a\nb"}) {
    EXPECT_THROW(ParseObjectUrl(text), Error) << text;
  }
  EXPECT_THROW(ParseObjectUrl("s3://bucket/" + std::string(1025, 'a')), Error);
}

}  // namespace
}  // namespace tandem::engine
