#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "server/launch/cluster.h"

namespace tandem::server {

struct KubernetesOptions {
  std::filesystem::path program = "/usr/bin/tandem";  // in the image
  std::string image;                                  // required
  std::string claim;            // volume claim of the jobs' directories; required
  std::filesystem::path mount;  // where the server and the pods have that volume; required
  std::string name_space;       // empty: kubectl's own
  std::string queue;            // LocalQueue of Kueue; empty: none
  std::string token_secret;     // Secret whose key `token` is the hub's; empty: none
  std::string cpu;              // empty: no request
  std::string memory;           // empty: no limit
};

// From words --image=…, --claim=…, --mount=…, --namespace=…, --queue=…, --token-secret=…, --cpu=…,
// --memory=…. Throws kInvalidArgument for another word, a repeated or a missing one.
KubernetesOptions ParseKubernetesOptions(const std::vector<std::string>& words);

// Kubernetes by kubectl with fixed arguments: one Job per run, without restarts of its own.
class KubernetesCluster : public Cluster {
 public:
  explicit KubernetesCluster(KubernetesOptions options) : options_(std::move(options)) {}

  std::string_view name() const override { return "Kubernetes"; }
  std::string Submit(const JobStart& job) override;
  std::vector<ClusterRun> List(const std::vector<std::string>& jobs) override;
  void Terminate(const std::string& id) override;
  void Remove(const std::string& id) override;

  // The Job object as JSON.
  std::string Manifest(const JobStart& job) const;

 private:
  std::vector<std::string> Kubectl(std::vector<std::string> words) const;
  void Delete(std::vector<std::string> words) const;

  const KubernetesOptions options_;
};

}  // namespace tandem::server
