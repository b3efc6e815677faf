// The provenance of models in GET /v1/models and GET /admin/models.

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/formats/model_dir.h"
#include "tests/server/app/app_adapters_fixture.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

class AppProvenanceTest : public AppAdaptersTest {
 protected:
  AppProvenanceTest() { StartApp(WithAdmin()); }

  // Copies the tiny model, or an adapter of it, and adds that provenance record.
  fs::path Copy(const std::string& of, const std::string& name, const std::string& record) {
    const fs::path dir = directory_->path() / name;
    fs::copy(directory_->path() / of, dir, fs::copy_options::recursive);
    std::ofstream(dir / "convert.json") << record;
    return dir;
  }
  Json LoadModel(const std::string& path) {
    const auto reply = Admin("/admin/models/load", {{"path", path}, {"wait", true}});
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(Json::parse(reply.body)["status"], "succeeded") << reply.body;
    return Json::parse(AdminWithout("GET", "/v1/models/" + path).body);
  }
};

TEST_F(AppProvenanceTest, ARecordIsShownWithTheHashOfWhatIsServed) {
  EXPECT_EQ(Json::parse(AdminWithout("GET", "/v1/models/tiny").body)["provenance"], nullptr);
  const fs::path dir = Copy("tiny", "recorded",
                            R"({"format": "hf", "password": "no", "parents": [{"role": "source",
                              "name": "big", "content_sha256": "abc"}],
                              "certificate": {"state": "measured", "max_kl": 0.25}})");

  const Json model = LoadModel("recorded");

  const Json& provenance = model["provenance"];
  EXPECT_EQ(provenance["parents"],
            Json::array({{{"role", "source"}, {"name", "big"}, {"content_sha256", "abc"}}}));
  EXPECT_EQ(provenance["certificate"]["max_kl"], 0.25);
  EXPECT_EQ(provenance["hashes"]["content_sha256"], engine::ModelDir::Open(dir).ContentHash({}));
  EXPECT_FALSE(provenance.contains("password"));
  for (const Json& each : Json::parse(AdminWithout("GET", "/admin/models").body)["data"]) {
    EXPECT_EQ(each["provenance"], each["id"] == "recorded" ? provenance : Json()) << each;
  }
}

TEST_F(AppProvenanceTest, AdaptersHaveTheirs) {
  Copy("one", "recorded-adapter", R"({"parents": [{"role": "base", "name": "tiny"}]})");
  Load("style", "recorded-adapter");

  const Json model = Json::parse(AdminWithout("GET", "/v1/models/style").body);

  EXPECT_EQ(model["provenance"]["parents"][0]["name"], "tiny");
}

TEST_F(AppProvenanceTest, NoRecordHarmsTheListing) {
  Copy("tiny", "no-json", "{\"format\": ");
  Copy("tiny", "too-deep", std::string(300000, '['));
  Copy("tiny", "too-large", "{\"format\": \"" + std::string(2 << 20, 'x') + "\"}");
  for (const char* name : {"no-json", "too-deep", "too-large"}) {
    EXPECT_EQ(LoadModel(name)["provenance"], nullptr) << name;
  }
  const Json list = Json::parse(AdminWithout("GET", "/v1/models").body);
  EXPECT_EQ(list["data"].size(), 4U);
}

}  // namespace
}  // namespace tandem::server
