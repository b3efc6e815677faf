# `cpack -G DEB` in the build folder makes a package for the Debian release of this machine (config/packaging/README.md).

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tandem)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR "The Tandem authors")
set(CPACK_PACKAGE_CONTACT "The Tandem authors <tandem@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "train and serve language models on CPUs")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"OpenAI-compatible server for language models that also fine-tunes and
converts them. Serves Hugging Face directories and GGUF files, and runs as a
service with its own user.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
# Installs into a folder of its own, as `make install DESTDIR=` does; the service has absolute paths.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
# Building is make_release's task.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

set(CPACK_COMPONENTS_ALL program completions man service)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS "adduser")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "ca-certificates")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
foreach(file conffiles postinst prerm postrm)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_SOURCE_DIR}/config/packaging/deb/${file})
endforeach()
include(CPack)
