#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/hub/http_client.h"
#include "engine/hub/partial_blob.h"
#include "engine/hub/reference.h"

namespace tandem::engine {

// A file of a repository, as the list of its files describes it. All of it are claims.
struct RepoFile {
  std::string name;  // IsSafeFileName
  std::optional<uint64_t> size;
  std::string sha256;    // of large files; empty: unknown
  std::string git_sha1;  // of the others
};

struct RepoInfo {
  std::string commit;
  std::vector<RepoFile> files;  // sorted by name

  // nullptr when there is none of this name.
  const RepoFile* Find(const std::string& name) const;
};

// Where a file's bytes are, and what they must turn out to be.
struct FileLocation {
  BlobIdentity identity;
  Url url;
  bool is_elsewhere = false;  // not at the hub itself: no token, and valid for a while only
};

// Each asks again after faults that may pass (Backoff), and throws for the rest what a user can act
// on: kPermissionDenied for gated models, kNotFound, kUnauthenticated for tokens that are refused.

// Of the commit that the reference names; throws kDataLoss when the hub answers with another one.
RepoInfo FetchRepoInfo(HttpClient& client, const HubReference& reference, const Patience& patience);
FileLocation LocateFile(HttpClient& client, const HubReference& reference,
                        const std::string& commit, const RepoFile& file);

// An answer of 400 and above from the hub itself, explained.
[[noreturn]] void ThrowHubStatus(const HttpHead& head, const Url& url,
                                 const HubReference& reference, const HubOptions& options);

// "https://huggingface.co/ORG/NAME/resolve/REVISION/folder/file"
std::string ResolveUrlOf(const HubOptions& options, const std::string& repo,
                         const std::string& revision, const std::string& name);

// The list of files as the API writes it. Throws kDataLoss.
RepoInfo ParseRepoInfo(std::string_view text, const std::string& source);

}  // namespace tandem::engine
