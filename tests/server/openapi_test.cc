#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "server/app/routes.h"
#include "server/wire/unserved_fields.h"

// GET /openapi.json is written by hand; these tests compare it with the routes.

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

Json Document() { return Json::parse(OpenApiText()); }

const std::set<std::string> kMethods = {"get", "put", "post", "delete", "patch"};

TEST(OpenApi, DescribesExactlyTheRoutesThereAre) {
  ModelRegistry models(false);
  std::atomic<bool> no{false};
  const HandlerContext context{
      .models = models, .is_loading = no, .is_draining = no, .model_root = {}, .base_url = ""};
  std::set<std::string> served;
  for (const Route& route : AllRoutes(context)) {
    std::string path = route.pattern;
    path.erase(std::remove(path.begin(), path.end(), '+'), path.end());  // "{id+}"
    served.insert(route.method + " " + path);
  }

  std::set<std::string> described;
  const Json document = Document();
  for (const auto& [path, item] : document["paths"].items()) {
    for (const auto& [key, operation] : item.items()) {
      std::string method = key;
      std::transform(method.begin(), method.end(), method.begin(), ::toupper);
      if (kMethods.contains(key)) described.insert(method + " " + path);
    }
  }

  EXPECT_EQ(described, served);
}

void FindReferences(const Json& value, std::set<std::string>& found) {
  if (value.is_object() && value.contains("$ref")) found.insert(value["$ref"].get<std::string>());
  if (!value.is_structured()) return;
  for (const Json& member : value) FindReferences(member, found);
}

TEST(OpenApi, EveryReferenceLeadsSomewhereAndEverySchemaIsUsed) {
  const Json document = Document();
  std::set<std::string> references;
  FindReferences(document, references);

  for (const std::string& reference : references) {
    ASSERT_TRUE(reference.starts_with("#/")) << reference;
    EXPECT_TRUE(document.contains(Json::json_pointer(reference.substr(1)))) << reference;
  }
  for (const auto& [name, schema] : document["components"]["schemas"].items()) {
    EXPECT_TRUE(references.contains("#/components/schemas/" + name)) << name;
  }
}

TEST(OpenApi, EveryOperationHasANameAndItsPathParameters) {
  std::set<std::string> names;
  for (const auto& [path, item] : Document()["paths"].items()) {
    for (const auto& [key, operation] : item.items()) {
      if (!kMethods.contains(key)) continue;
      EXPECT_TRUE(names.insert(operation["operationId"].get<std::string>()).second) << path;
      EXPECT_FALSE(operation["summary"].get<std::string>().empty()) << path;
      EXPECT_FALSE(operation["responses"].empty()) << path;
    }
    if (path.find("{id}") != std::string::npos) {
      EXPECT_EQ(item["parameters"][0]["name"], "id") << path;
    }
  }
}

TEST(OpenApi, NoRouteAnswersHtml) { EXPECT_EQ(Document().dump().find("html"), std::string::npos); }

TEST(OpenApi, ListsExactlyTheFieldsThatEachGenerationRouteRefuses) {
  const Json schemas = Document()["components"]["schemas"];
  std::vector<std::string> chat;
  std::vector<std::string> completions;
  for (const UnservedField& field : UnservedFields()) {
    if (field.in_chat) chat.emplace_back(field.name);
    if (field.in_completions) completions.emplace_back(field.name);
  }

  EXPECT_EQ(schemas["ChatCompletionRequest"]["x-unsupported-parameters"], Json(chat));
  EXPECT_EQ(schemas["CompletionRequest"]["x-unsupported-parameters"], Json(completions));
}

}  // namespace
}  // namespace tandem::server
