#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "server/handlers/endpoints.h"
#include "server/wire/unserved_fields.h"
#include "tests/support/paths.h"

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

// Method and path of each curl in server/API.md, as the shell sends them: `-X` names the method, a
// body makes a POST.
std::vector<std::pair<std::string, std::string>> ExampleRequests() {
  std::ifstream file(tests::SourceDir() / "server" / "API.md");
  std::string text(std::istreambuf_iterator<char>(file), {});
  for (size_t at = 0; (at = text.find("\\\n", at)) != std::string::npos;) text.erase(at, 2);
  std::vector<std::pair<std::string, std::string>> requests;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line.resize(std::min(line.size(), line.find(" | ")));  // the flags after a pipe are not curl's
    static const std::regex curl(R"(curl .*?\$TANDEM(/[^\s"?)|]*))");
    std::smatch found;
    if (!std::regex_search(line, found, curl)) continue;
    static const std::regex named(R"(-X (\w+))");
    static const std::regex body(R"( (-d|-F|--data|--form)[ =@])");
    std::smatch method;
    const std::string path = found[1];
    if (std::regex_search(line, method, named)) {
      requests.emplace_back(method[1], path);
    } else {
      requests.emplace_back(std::regex_search(line, body) ? "POST" : "GET", path);
    }
  }
  return requests;
}

TEST(OpenApi, EveryEndpointHasAnExampleAndEveryExampleAnEndpoint) {
  ModelRegistry models(false);
  std::atomic<bool> no{false};
  const HandlerContext context{
      .models = models, .is_loading = no, .is_draining = no, .model_root = {}, .base_url = ""};
  const std::vector<Route> routes = AllRoutes(context);
  const Router router(routes);
  std::set<std::string> shown;
  for (const auto& [method, path] : ExampleRequests()) {
    const Router::Match match = router.Find(method, path);
    ASSERT_NE(match.route, nullptr) << "server/API.md asks for " << method << " " << path;
    shown.insert(match.route->method + " " + match.route->pattern);
  }
  for (const Route& route : routes) {
    const std::string name = route.method + " " + route.pattern;
    EXPECT_TRUE(shown.contains(name)) << "server/API.md has no curl for " << name;
  }
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
  const Json document = Document();
  std::set<std::string> names;
  for (const auto& [path, item] : document["paths"].items()) {
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

TEST(OpenApi, OnlyThePagesForBrowsersAnswerHtml) {
  const Json document = Document();
  std::set<std::string> pages;
  for (const auto& [path, item] : document["paths"].items()) {
    if (item.dump().find("text/html\":") != std::string::npos) pages.insert(path);
  }

  EXPECT_EQ(pages, (std::set<std::string>{"/", "/docs"}));
}

// The page at /docs groups operations by tag and fills its forms with the examples.
TEST(OpenApi, EveryOperationHasOneListedTagAndEveryJsonBodyAnExample) {
  const Json document = Document();
  std::set<std::string> listed;
  for (const Json& tag : document["tags"]) listed.insert(tag["name"].get<std::string>());
  std::set<std::string> used;
  for (const auto& [path, item] : document["paths"].items()) {
    for (const auto& [key, operation] : item.items()) {
      if (!kMethods.contains(key)) continue;
      ASSERT_EQ(operation.value("tags", Json::array()).size(), 1U) << key << " " << path;
      used.insert(operation["tags"][0].get<std::string>());
      const Json body = operation.value("requestBody", Json::object());
      const Json media = body.value("content", Json::object());
      if (!media.contains("application/json")) continue;
      EXPECT_TRUE(media["application/json"].contains("example")) << key << " " << path;
    }
  }

  EXPECT_EQ(used, listed);
}

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
