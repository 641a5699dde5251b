/* Tests the parser of --archfs: values, and what each becomes. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mounts.h"

static int failures;

static const struct mounts_names names = {.job = "12", .step = "batch", .user = "jane"};

/* Checks that `text` becomes `expected`: ARCHIVE>MOUNTPOINT lines, or "error: " and a part of the
 * message. */
static void check(const char *text, const char *expected) {
    struct mounts mounts = {0};
    const char *wrong = mounts_parse(&mounts, text);
    if (wrong == NULL) {
        wrong = mounts_expand(&mounts, &names);
    }
    char *found = NULL;
    size_t size;
    FILE *stream = open_memstream(&found, &size);
    if (wrong != NULL) {
        fprintf(stream, "error: %s", wrong);
    }
    for (size_t i = 0; i < mounts.count; i++) {
        const struct mount *mount = &mounts.items[i];
        fprintf(stream, "%s%s>%s", i == 0 ? "" : "\n", mount->archive, mount->mount_point);
    }
    fclose(stream);
    if (wrong != NULL ? strstr(found, expected) != found : strcmp(found, expected) != 0) {
        printf("FAILED  %.60s: %s, not %s\n", text == NULL ? "NULL" : text, found, expected);
        failures++;
    }
    free(found);
    mounts_clear(&mounts);
}

/* A value of `length` bytes. */
static void check_long(size_t length, const char *expected) {
    char *text = malloc(length + 1);
    memset(text, 'a', length);
    text[length] = '\0';
    check(text, expected);
    free(text);
}

/* Any bytes: for the sanitizers. */
static void check_random(void) {
    static const char alphabet[] = "aab/::,,\\\\%%jsu \n\x80";
    unsigned state = 1;
    for (int round = 0; round < 200000; round++) {
        char text[40];
        size_t length = 0;
        while (length < sizeof text - 1 && (state = state * 1103515245u + 12345u) >> 28 != 0) {
            text[length++] = alphabet[(state >> 16) % (sizeof alphabet - 1)];
        }
        text[length] = '\0';
        struct mounts mounts = {0};
        if (mounts_parse(&mounts, text) == NULL) {
            mounts_expand(&mounts, &names);
        }
        mounts_clear(&mounts);
    }
}

int main(void) {
    check("a.sqfs:/mnt", "a.sqfs>/mnt");
    check("/scratch/a.tar:/dev/shm/x,b.zip:/y", "/scratch/a.tar>/dev/shm/x\nb.zip>/y");
    check("https://host:8080/x.sqfs:/dev/shm/mnt", "https://host:8080/x.sqfs>/dev/shm/mnt");
    check("s3://bucket/key:/mnt", "s3://bucket/key>/mnt");
    check("a:b:/c:/mnt", "a:b:/c>/mnt");
    check("a\\,b.sqfs:/m\\:/n", "a,b.sqfs>/m:/n");
    check("a\\\\b.sqfs:/mnt", "a\\b.sqfs>/mnt");
    check("a\\b.sqfs:/mnt", "a\\b.sqfs>/mnt");
    check("-x.sqfs:/mnt", "-x.sqfs>/mnt");
    check("a:/m/%u-%j.%s/100%%", "a>/m/jane-12.batch/100%");
    check("%j.sqfs:/mnt", "%j.sqfs>/mnt");
    check(NULL, "error: empty");
    check("", "error: empty");
    check(",", "error: an empty item");
    check("a:/m,", "error: an empty item");
    check("a.sqfs", "error: no mount point");
    check("a.sqfs:mnt", "error: no mount point");
    check("https://host:8080/x.sqfs", "error: no mount point");
    check("a://mnt", "error: no mount point");
    check(":/mnt", "error: no archive");
    check("a:/", "error: the mount point is the root");
    check("a:/m,b:/m", "error: the same mount point twice");
    check("a:/m/%x", "error: the patterns");
    check("a:/m/%", "error: the patterns");
    check("a:/m\nb", "error: contains a line break");
    check("a:/m\x7f", "error: contains");
    check("a:/1,a:/2,a:/3,a:/4,a:/5,a:/6,a:/7,a:/8,a:/9,a:/10,a:/11,a:/12,a:/13,a:/14,a:/15,a:/16,"
          "a:/17", "error: more than 16");
    check_long(MOUNTS_TEXT_LIMIT, "error: no mount point");
    check_long(MOUNTS_TEXT_LIMIT + 1, "error: longer");
    check_long(10 * 1000 * 1000, "error: longer");
    check_random();
    if (failures == 0) {
        printf("ok      the parser of --archfs\n");
    }
    return failures != 0;
}
