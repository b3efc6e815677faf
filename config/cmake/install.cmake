# `cmake --install` puts everything into the prefix, or with `--component` one of
#   program       bin/tandem, and its licences in share/doc/tandem
#   library       the libraries of engine/ and training/, their public headers and a CMake package. Other projects then
#                 use find_package(Tandem) and link Tandem::engine or Tandem::training.
#   completions   for bash, zsh and fish
#   man           manual pages
# and, never by default, because it writes to /etc:
#   service       the systemd unit and its configuration

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS tandem RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
include(config/cmake/install_program.cmake)

# Lists a target and all targets of this project that it links.
function(tandem_link_closure OUT)
  set(waiting ${ARGN})
  set(found)
  while(waiting)
    list(POP_FRONT waiting target)
    if(NOT TARGET ${target} OR target IN_LIST found)
      continue()
    endif()
    get_target_property(is_imported ${target} IMPORTED)
    if(is_imported)
      continue()
    endif()
    list(APPEND found ${target})
    get_target_property(linked ${target} INTERFACE_LINK_LIBRARIES)
    if(linked)
      list(APPEND waiting ${linked})
    endif()
  endwhile()
  set(${OUT} ${found} PARENT_SCOPE)
endfunction()

tandem_link_closure(libraries engine training)
set_target_properties(tandem_options PROPERTIES EXPORT_NAME options)
install(TARGETS ${libraries} EXPORT TandemTargets
  # A folder of its own: other packages have a libengine.a too.
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/tandem COMPONENT library)

# The headers that users include by name. The headers that these include are installed with them.
set(public_headers
  engine/base/log.h
  engine/chat/chat_template.h
  engine/chat/messages.h
  engine/engine.h
  engine/formats/model_dir.h
  engine/generate.h
  engine/tokenizer/tokenizer.h
  training/data/sample_encoder.h
  training/run/run.h
  training/setup/model_files.h
  training/setup/run_parts.h
  training/spec/spec.h
  training/step/trainer.h)
install(CODE "
  set(tandem_source_dir \"${CMAKE_SOURCE_DIR}\")
  set(tandem_include_dir \"${CMAKE_INSTALL_INCLUDEDIR}/tandem\")
  set(tandem_public_headers \"${public_headers}\")
  include(\"${CMAKE_SOURCE_DIR}/config/cmake/install_headers.cmake\")" COMPONENT library)
install(DIRECTORY engine/base/third_party DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tandem/engine/base
  COMPONENT library)
target_include_directories(tandem_options INTERFACE
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/tandem>
  # Replaces a header of the JSON library, as in our build.
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/tandem/engine/base/third_party>)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Tandem)
configure_package_config_file(config/cmake/TandemConfig.cmake.in ${CMAKE_BINARY_DIR}/TandemConfig.cmake
  INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/TandemConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/TandemConfig.cmake ${CMAKE_BINARY_DIR}/TandemConfigVersion.cmake
  DESTINATION ${package_dir} COMPONENT library)
install(EXPORT TandemTargets NAMESPACE Tandem:: DESTINATION ${package_dir} COMPONENT library)
