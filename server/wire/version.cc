#include "server/wire/version.h"

namespace tandem::server {

std::string VersionNumber() { return TANDEM_VERSION; }
std::string VersionCommit() { return TANDEM_COMMIT; }
std::string VersionBuild() { return TANDEM_BUILD; }

}  // namespace tandem::server
