#include "server/cli/remote/family_list.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/family_table.h"
#include "server/cli/remote/table.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using engine::FamilySpec;
using engine::FamilySupport;
using engine::SupportColumn;

Json FamilyJson(const FamilySpec& family) {
  const FamilySupport support = engine::SupportOf(family);
  Json json{{"family", family.name}, {"models", family.models}, {"architectures", Json::array()}};
  for (const std::string_view architecture : family.architectures) {
    json["architectures"].push_back(architecture);
  }
  for (const SupportColumn& column : engine::SupportColumns()) {
    json[column.key] = support.*column.value;
  }
  return json;
}

}  // namespace

void PrintFamilies(bool is_json) {
  if (is_json) {
    Json families = Json::array();
    for (const FamilySpec* family : engine::FamiliesByModels()) {
      families.push_back(FamilyJson(*family));
    }
    PrintJson({{"object", "list"}, {"data", std::move(families)}});
    return;
  }
  std::vector<std::string> head = {"MODELS", "CLASS"};
  for (const SupportColumn& column : engine::SupportColumns()) head.emplace_back(column.title);
  TextTable table(std::move(head));
  for (const FamilySpec* family : engine::FamiliesByModels()) {
    const FamilySupport support = engine::SupportOf(*family);
    std::vector<std::string> row = {std::string(family->models),
                                    std::string(family->architectures.front())};
    for (const SupportColumn& column : engine::SupportColumns()) {
      row.emplace_back(support.*column.value ? "yes" : "-");
    }
    table.Add(std::move(row));
  }
  table.Print();
}

}  // namespace tandem::server
