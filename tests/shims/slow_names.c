// Names of hosts are looked up for longer than anybody waits, as where no name server answers. To be
// preloaded.

#define _GNU_SOURCE
#include <netdb.h>
#include <unistd.h>

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **result) {
    (void)node, (void)service, (void)hints, (void)result;
    sleep(60);
    return EAI_AGAIN;
}
