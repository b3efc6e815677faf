#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <string>

#include "server/handlers/endpoints.h"

namespace tandem::server {
namespace {

std::vector<Route> Routes() {
  static ModelRegistry models(false);
  static std::atomic<bool> no{false};
  static const HandlerContext context{
      .models = models, .is_loading = no, .is_draining = no, .model_root = {}, .base_url = ""};
  return AllRoutes(context);
}

TEST(Routes, OnlyThePublicRoutesAreOpen) {
  std::set<std::string> open;
  for (const Route& route : Routes()) {
    if (route.access == Access::kOpen) open.insert(route.method + " " + route.pattern);
  }

  EXPECT_EQ(open, (std::set<std::string>{"GET /", "GET /health", "GET /ready", "GET /version",
                                         "GET /openapi.json", "GET /docs", "GET /api/version",
                                         "GET /console/{file+}"}));
}

TEST(Routes, EveryAdministrativeRouteNeedsTheAdminKey) {
  int n_admin = 0;
  for (const Route& route : Routes()) {
    const bool is_admin = route.pattern.starts_with("/admin") || route.pattern == "/api/pull" ||
                          route.pattern.find("lora_adapter") != std::string::npos;
    EXPECT_EQ(route.access == Access::kAdminKey, is_admin) << route.pattern;
    if (is_admin) ++n_admin;
  }
  EXPECT_GT(n_admin, 15);
}

TEST(Routes, WhatTrainsOrKeepsFilesNeedsTheScopeTrain) {
  int n_train = 0;
  for (const Route& route : Routes()) {
    const bool is_training = route.pattern.starts_with("/v1/files") ||
                             route.pattern.starts_with("/v1/fine_tuning") ||
                             (route.pattern.starts_with("/v1/models") && route.method == "DELETE");
    EXPECT_EQ(route.access == Access::kTrainKey, is_training)
        << route.method << " " << route.pattern;
    if (is_training) ++n_train;
  }
  EXPECT_GT(n_train, 10);
}

}  // namespace
}  // namespace tandem::server
