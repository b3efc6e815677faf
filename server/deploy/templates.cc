#include "server/deploy/templates.h"

#include <cstddef>

#include "engine/base/embed.h"

// Every template: its symbol, and its path below config/deploy/templates and below the output.
#define TANDEM_DEPLOY_TEMPLATES(FILE)                                        \
  FILE(deploy_containerfile, "container/Containerfile")                      \
  FILE(deploy_kustomization, "kubernetes/pipeline/kustomization.yaml")       \
  FILE(deploy_namespace, "kubernetes/pipeline/namespace.yaml")               \
  FILE(deploy_storage, "kubernetes/pipeline/storage.yaml")                   \
  FILE(deploy_step1, "kubernetes/pipeline/step1-convert-hf-to-maxtext.yaml") \
  FILE(deploy_step2, "kubernetes/pipeline/step2-fine-tuning.yaml")           \
  FILE(deploy_step3, "kubernetes/pipeline/step3-inference-test.yaml")        \
  FILE(deploy_step4, "kubernetes/pipeline/step4-convert-maxtext-to-hf.yaml") \
  FILE(deploy_step5, "kubernetes/pipeline/step5-serving.yaml")               \
  FILE(deploy_router_settings, "kubernetes/serving/haproxy.cfg")             \
  FILE(deploy_serving, "kubernetes/serving/kustomization.yaml")              \
  FILE(deploy_postgres, "kubernetes/serving/postgres.yaml")                  \
  FILE(deploy_router, "kubernetes/serving/router.yaml")                      \
  FILE(deploy_servers, "kubernetes/serving/servers.yaml")                    \
  FILE(deploy_create_secrets, "scripts/create-secrets.sh")                   \
  FILE(deploy_run_pipeline, "scripts/run-pipeline.sh")                       \
  FILE(deploy_terraform_main, "terraform/main.tf")                           \
  FILE(deploy_terraform_outputs, "terraform/outputs.tf")                     \
  FILE(deploy_terraform_values, "terraform/terraform.tfvars")                \
  FILE(deploy_terraform_variables, "terraform/variables.tf")

#define TANDEM_DEPLOY_EMBED(symbol, name) TANDEM_EMBED(symbol, TANDEM_DEPLOY_SOURCE "/" name);
TANDEM_DEPLOY_TEMPLATES(TANDEM_DEPLOY_EMBED)
TANDEM_EMBED(deploy_pipeline_spec, TANDEM_PRESETS_SOURCE "/pipelines/gemma2-demo.yaml");
TANDEM_EMBED(deploy_training_spec, TANDEM_PRESETS_SOURCE "/gemma2-ultrachat.yaml");

namespace tandem::server {
namespace {

std::string_view TextBetween(const std::byte* begin, const std::byte* end) {
  return {reinterpret_cast<const char*>(begin), static_cast<size_t>(end - begin)};
}

}  // namespace

const std::vector<DeployTemplate>& DeployTemplates() {
#define TANDEM_DEPLOY_ROW(symbol, name) {name, TextBetween(symbol##_begin, symbol##_end)},
  static const std::vector<DeployTemplate> templates = {
      TANDEM_DEPLOY_TEMPLATES(TANDEM_DEPLOY_ROW)
      // The presets interpolate their variables when they run.
      {"kubernetes/pipeline/gemma2-demo.yaml",
       TextBetween(deploy_pipeline_spec_begin, deploy_pipeline_spec_end), false},
      {"kubernetes/pipeline/gemma2-ultrachat.yaml",
       TextBetween(deploy_training_spec_begin, deploy_training_spec_end), false}};
  return templates;
}

}  // namespace tandem::server
